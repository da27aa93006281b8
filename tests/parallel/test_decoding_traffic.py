"""A search sends nothing for a token but whether all are done, and parameters once a batch."""

import dataclasses
import re

import jax
import pytest

from jaxformer.config import Config, DecodingConfig, MeshConfig, TokenizerConfig
from jaxformer.model_config import TransformerConfig
from jaxformer.planning.collectives import read_collectives
from jaxformer.planning.decoding_plan import compile_decoding, search_loop, search_shape
from jaxformer.planning.step_plan import plan_run
from jaxformer.training.checks.memory import bytes_per_device

MODEL = TransformerConfig(
    num_encoder_layers=1, num_decoder_layers=1, d_model=32, d_ff=64, num_heads=8
)
SCANNED = dataclasses.replace(MODEL, num_decoder_layers=2, scan_layers=True)
# (data, fsdp, tensor), beams, model
CASES = {
    "data, beams": ((8, 1, 1), 3, MODEL),
    "fsdp, greedy": ((1, 8, 1), 1, MODEL),
    "data x fsdp, beams, scanned layers": ((2, 4, 1), 3, SCANNED),
    "data x fsdp x tensor, beams": ((2, 2, 2), 3, MODEL),
}


def messages(text, mesh, **arguments):
    """Those over `data` and `fsdp`.

    XLA's CPU backend gathers what it takes the top of, as it cannot cut that operation; compiled
    for GPUs and TPUs it stays where it is.
    """
    text = re.sub(r'\n[^\n]* all-gather\([^\n]*/top_k"[^\n]*', "", text)
    return [
        message
        for message in read_collectives(text, mesh.size, **arguments)
        if message.axes(dict(mesh.shape)) != ("tensor",)
    ]


@pytest.mark.parametrize("case", CASES)
def test_a_search_sends_parameters_once_and_no_activation(case, compiled_programs):
    (data, fsdp, tensor), beams, model = CASES[case]
    config = Config(
        model=model,
        tokenizer=TokenizerConfig(vocab_size=264),
        decoding=DecodingConfig(beam_size=beams, max_length_extra=8),
        mesh=MeshConfig(data=data, fsdp=fsdp, tensor=tensor),
    )
    run = plan_run(config, jax.devices())
    text = compile_decoding(run, search_shape(run, 16, 32)).as_text()
    (done,) = messages(text, run.mesh, starts=search_loop(text))
    assert (done.kind, done.size, done.count) == ("all-reduce", 1, 1)
    rest = [message for message in messages(text, run.mesh) if message.size > 1]
    assert {message.kind for message in rest} == ({"all-gather"} if fsdp > 1 else set())
    assert {message.axes(dict(run.mesh.shape)) for message in rest} <= {("fsdp",)}
    gathered = sum(message.size * message.count for message in rest)
    cut = [leaf for leaf in jax.tree.leaves(run.abstract.params) if "fsdp" in leaf.sharding.spec]
    assert gathered == (bytes_per_device(cut) * fsdp if fsdp > 1 else 0)
