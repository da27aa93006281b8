"""Plans of a tiny search for eight devices: its shape, its loop, what it holds and sends."""

import dataclasses
import re

import jax
import pytest
from training_run import change, small_config

from jaxformer.decoding.search_shape import SearchShape
from jaxformer.errors import InputError
from jaxformer.models.flops import decoding_flops
from jaxformer.parallel.sharding import shard_rows
from jaxformer.planning import decoding_plan
from jaxformer.planning.decoding_plan import (
    cache_bytes,
    compile_decoding,
    plan_decoding,
    refuse_decoding,
    search_loop,
    search_shape,
    smaller_search,
)
from jaxformer.planning.step_plan import plan_run
from jaxformer.training.checks.memory import bytes_per_device

H100 = "NVIDIA H100 80GB HBM3"
CONFIG = change(small_config("corpus", "cache"), tokenizer__vocab_size=352, decoding__beam_size=3)


def planned(**changes):
    return plan_run(change(CONFIG, **changes), jax.devices())


@pytest.fixture(scope="module")
def beam(compiled_programs):
    run = planned()
    return run, plan_decoding(run, search_shape(run, 16, 32), H100)


def test_the_shape_is_one_that_the_translator_compiles():
    run = planned(decoding__tokens_per_batch=640)
    assert search_shape(run, 10) == SearchShape(40, 16, 24, 3)
    assert search_shape(run, 10, 9) == SearchShape(32, 16, 24, 3)
    assert search_shape(run, 17, 1) == SearchShape(8, 32, 40, 3)  # a row for each device
    with pytest.raises(InputError, match=r"--batch=41: .* holds 1 to 40 sentences of 16 tokens"):
        search_shape(run, 10, 41)


def test_the_translator_asks_for_that_program(small_run, monkeypatch):
    """The arguments of a real translation are those that the plan compiles for."""
    from jaxformer.decoding import translator as module
    from jaxformer.decoding.translator import Translator
    from jaxformer.parallel.mesh import make_mesh

    config = small_run.config
    translator = Translator.from_workdir(small_run.workdir, mesh=make_mesh(config.mesh))
    calls = []

    def record(*arguments, **static):
        calls.append((arguments, static))
        return real(*arguments, **static)

    real = module.translate_batch
    monkeypatch.setattr(module, "translate_batch", record)
    translator.translate(["one two"] * 9)
    ((arguments, static),) = calls

    lowered = []
    monkeypatch.setattr(decoding_plan, "translate_batch", LowerOnly(lowered))
    tokenizer = dataclasses.replace(config.tokenizer, vocab_size=translator.model.config.vocab_size)
    run = plan_run(dataclasses.replace(config, tokenizer=tokenizer), jax.devices())
    compile_decoding(run, search_shape(run, arguments[1].shape[1], 9))
    ((planned_arguments, planned_static),) = lowered
    assert planned_static == static
    given, expected = (jax.tree.leaves(each) for each in (planned_arguments, arguments))
    for one, two in zip(given, expected, strict=True):
        assert (one.shape, one.dtype) == (two.shape, two.dtype)
        assert one.sharding.is_equivalent_to(two.sharding, len(one.shape))


class LowerOnly:
    """Stands for a jitted function; keeps what it is lowered for, and compiles nothing."""

    def __init__(self, calls):
        self.calls = calls

    def lower(self, *arguments, **static):
        self.calls.append((arguments, static))
        return self

    def compile(self):
        return None


def test_the_loop_is_found_with_scanned_layers_too(compiled_programs):
    layers = {"model__num_encoder_layers": 3, "model__num_decoder_layers": 3}
    run = planned(**layers, model__scan_layers=True, decoding__beam_size=1)
    text = compile_decoding(run, search_shape(run, 16, 8)).as_text()
    body, condition = search_loop(text)
    assert text.count(" while(") > 1
    assert f"\n%{body} " in text and f"\n%{condition} " in text
    with pytest.raises(ValueError, match="found none"):
        search_loop("ENTRY %main (x: f32[8]) -> f32[8] {\n  ROOT %x = f32[8]{0} parameter(0)\n}\n")


def test_work_of_a_token_and_of_the_batch(beam):
    run, plan = beam
    assert plan.shape == SearchShape(32, 16, 24, 3)
    before, a_round = decoding_flops(run.config.model, **plan.shape._asdict())
    assert plan.token.flops == a_round.total / 8
    assert plan.whole.flops == (before.total + 24 * a_round.total) / 8
    assert plan.tokens == 32 * 24
    rest = plan.whole.accessed - 24 * plan.token.accessed
    assert 0 < rest < 12 * plan.token.accessed  # the encoder
    parameters = bytes_per_device(run.abstract.params)
    assert plan.token.accessed > parameters / 2  # the decoder's are read for each token
    assert plan.token.chip == plan.whole.chip and plan.token.peak


def test_memory_is_that_of_the_parameters_and_of_what_the_search_holds(beam):
    run, plan = beam
    assert plan.needed.parameters == bytes_per_device(run.abstract.params)
    assert plan.needed.batch == 4 * (16 + 1) * 4
    model = run.config.model
    token = 2 * model.num_decoder_layers * model.d_model * 4
    assert plan.needed.cache == 4 * (3 * 24 + 16) * token
    assert plan.needed.temporaries > plan.needed.cache
    assert plan.needed.total > plan.needed.parameters + plan.needed.cache
    by_heads = planned(mesh__tensor=2)
    assert cache_bytes(by_heads, plan.shape) == plan.needed.cache  # half the heads, twice the rows


def test_the_compiled_search_runs(beam):
    run, plan = beam
    compiled = compile_decoding(run, plan.shape)
    params = jax.jit(
        run.objective.init,
        out_shardings=jax.tree.map(lambda leaf: leaf.sharding, run.abstract.params),
    )(jax.random.key(0))
    inputs, limits = jax.numpy.full((32, 16), 5), jax.numpy.full((32,), 24)
    result = compiled(params, shard_rows(inputs, run.mesh), shard_rows(limits, run.mesh))
    assert result.tokens.shape == (32, 3, 24)


def test_what_does_not_fit_is_refused_with_what_would_do(beam):
    run, plan = beam
    assert refuse_decoding(run, plan) == []
    small = dataclasses.replace(plan.whole, chip=plan.whole.chip._replace(memory=2**18))
    (line,) = refuse_decoding(run, dataclasses.replace(plan, whole=small))
    assert line.endswith(
        "of 0.2 MiB a device; set decoding.tokens_per_batch=2048 (now 4096), decoding.beam_size "
        "below 3, or use more devices"
    )
    assert refuse_decoding(run, dataclasses.replace(plan, needed=None)) == []


def test_the_compilers_refusal_is_explained(beam, monkeypatch):
    run, plan = beam
    for message, kind in (
        ("RESOURCE_EXHAUSTED: Ran out of memory\nmore", InputError),
        ("INTERNAL: a bug", jax.errors.JaxRuntimeError),
    ):

        def refuse(run, shape, message=message):
            raise jax.errors.JaxRuntimeError(message)

        monkeypatch.setattr(decoding_plan, "compile_decoding", refuse)
        with pytest.raises(kind) as refused:
            plan_decoding(run, plan.shape, H100)
        if kind is InputError:
            assert str(refused.value) == (
                "the device ran out of memory (RESOURCE_EXHAUSTED: Ran out of memory); "
                + smaller_search(run.config.decoding)
            )


def test_matrices_are_converted_once_and_not_for_every_token(monkeypatch):
    """As XLA gets the program: XLA for CPUs moves conversions out of a loop by itself."""
    lowered = []
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda program: lowered.append(program))
    compile_decoding(planned(model__dtype="bfloat16"), SearchShape(8, 16, 24, 3))
    before, _, search = lowered[0].as_text().partition("stablehlo.while")
    conversion = re.compile(r"convert %\S+ : \(tensor<\d+x\d+xf32>\) -> tensor<\d+x\d+xbf16>")
    assert conversion.search(before) and search and not conversion.search(search)
