"""Every number of a trace against the model in float64 NumPy, and against what the search saw."""

import dataclasses
import math
from dataclasses import dataclass

import jax
import numpy as np
import pytest
from numpy_reference import embed, layer_norm, project, softmax, stack, transformer
from random_translator import TEXT, make_translator, small_model

from jaxformer.decoding import translator as translator_module
from jaxformer.decoding.strategies import Greedy
from jaxformer.errors import InputError
from jaxformer.visualization.trace import bertviz_arguments, target_probabilities, trace_sentence

VARIANTS = {
    "post": {},
    "pre": {"norm": "pre", "positions": "rotary", "tie_embeddings": False},
    "two vocabularies": {
        "target_vocab_size": 290, "positions": "learned", "norm": "pre", "num_decoder_layers": 3,
    },
}  # fmt: skip
REFERENCE = "le chat dort"


@pytest.fixture(scope="module", params=VARIANTS)
def traced(request, parameters_of):
    config = small_model(**VARIANTS[request.param])
    translator = make_translator(parameters_of, config)
    return config, translator, trace_sentence(translator, TEXT, REFERENCE)


def close(actual, expected, tolerance=2e-5):
    np.testing.assert_allclose(actual, expected, atol=tolerance, rtol=tolerance)


def test_pieces_and_ids(traced):
    _, translator, trace = traced
    source, target = translator.source_tokenizer, translator.target_tokenizer
    assert trace.source_ids.tolist() == [*source.encode([TEXT])[0], source.eos_id]
    assert trace.source_pieces == tuple(source.pieces(trace.source_ids))
    assert trace.target_ids[-1] == target.eos_id and trace.decoder_ids[0] == target.bos_id
    assert trace.decoder_ids[1:].tolist() == trace.target_ids[:-1].tolist()
    assert target.decode([trace.target_ids])[0].replace("\n", " ") == trace.translation
    assert trace.decoder_pieces == ("<s>", *trace.target_pieces[:-1])
    assert trace.reference_trace.pieces[-1] == "</s>"


def test_embeddings_and_positions(traced):
    config, translator, trace = traced
    for side, ids in (("encoder", trace.source_ids), ("decoder", trace.decoder_ids)):
        numbers = getattr(trace, side)
        language = {"encoder": "source", "decoder": "target"}[side]
        total = embed(ids, language, translator.params, config)
        rows = embed(
            ids, language, translator.params, dataclasses.replace(config, positions="rotary")
        )
        close(numbers.embedding, rows, 1e-6)
        close(numbers.sum, total, 5e-6)
        close(numbers.embedding + numbers.positions, numbers.sum, 1e-6)
        assert (np.abs(numbers.positions).max() > 0.1) == (config.positions != "rotary")


def test_every_layer_is_the_models(traced):
    config, translator, trace = traced
    everything = np.ones((len(trace.source_ids),) * 2, bool)
    causal = np.tril(np.ones((len(trace.target_ids),) * 2, bool))
    crossed = np.ones((len(trace.target_ids), len(trace.source_ids)), bool)
    encoder, decoder = trace.encoder, trace.decoder

    def after_norm(states, side):
        if config.norm == "post":
            return states
        return layer_norm(states, translator.params[side]["final_norm"])

    for depth in range(1, config.num_encoder_layers + 1):
        encoded, weights, _ = stack(
            encoder.sum, translator.params["encoder"], config, depth, everything
        )
        close(after_norm(encoder.layers[depth - 1], "encoder"), encoded)
        close(encoder.attention[depth - 1], weights[-1], 5e-6)
    for depth in range(1, config.num_decoder_layers + 1):
        states, own, cross = stack(
            decoder.sum, translator.params["decoder"], config, depth, causal, encoded, crossed
        )
        close(after_norm(decoder.layers[depth - 1], "decoder"), states)
        close(decoder.self_attention[depth - 1], own[-1], 5e-6)
        close(decoder.cross_attention[depth - 1], cross[-1], 5e-6)
        logits = project(states, translator.params, config)
        for step, row in enumerate(logits):
            probabilities = softmax(row)
            best = np.argsort(-probabilities, kind="stable")[:3]
            assert decoder.lens_ids[depth - 1, step].tolist() == best.tolist()
            close(decoder.lens_probs[depth - 1, step], probabilities[best])
    for numbers, output in ((encoder, encoded), (decoder, states)):
        assert (numbers.final_norm is None) == (config.norm == "post")
        close(numbers.layers[-1] if config.norm == "post" else numbers.final_norm, output)


def test_logits_and_distributions(traced):
    config, translator, trace = traced
    decoder = trace.decoder
    expected = transformer(
        translator.params, config, trace.source_ids[None], trace.decoder_ids[None]
    ).logits[0]
    close(decoder.logits, expected)
    assert decoder.logits.dtype == decoder.log_probs.dtype == np.float32
    for step, row in enumerate(expected):
        probabilities = softmax(row)
        close(decoder.log_probs[step], np.log(probabilities))
        assert decoder.top_ids[step].tolist() == np.argsort(-row, kind="stable")[:10].tolist()
        assert decoder.entropy[step] == pytest.approx(
            -sum(p * math.log(p) for p in probabilities), abs=1e-5
        )
        assert trace.chosen_log_probs[step] == decoder.log_probs[step, trace.target_ids[step]]


def test_rows_of_attention_sum_to_one_and_the_future_is_unseen(traced):
    trace = traced[2]
    for weights in (
        trace.encoder.attention, trace.decoder.self_attention, trace.decoder.cross_attention,
    ):  # fmt: skip
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-6)
    future = np.triu(np.ones(trace.decoder.self_attention.shape[-2:], bool), 1)
    assert (trace.decoder.self_attention[..., future] == 0).all()


def test_the_reference_is_fed_and_its_loss_is_the_training_loss(traced):
    config, translator, trace = traced
    reference, tokenizer = trace.reference_trace, translator.target_tokenizer
    assert reference.ids.tolist() == [*tokenizer.encode([REFERENCE])[0], tokenizer.eos_id]
    fed = np.array([tokenizer.bos_id, *reference.ids[:-1]])
    expected = transformer(translator.params, config, trace.source_ids[None], fed[None]).logits[0]
    close(reference.logits, expected)
    on, off = trace.smoothed_target
    pieces = config.output_vocab_size
    assert (on, off) == pytest.approx((0.9 + 0.1 / pieces, 0.1 / pieces), abs=1e-7)
    for step, (token, row) in enumerate(zip(reference.ids, expected, strict=True)):
        target = np.full(pieces, off)
        target[token] = on
        loss = -float(target @ np.log(softmax(row)))
        assert reference.losses[step] == pytest.approx(loss, abs=1e-4)


@pytest.mark.parametrize("beam_size", [1, 4, 8])
def test_the_translation_is_that_of_translate(parameters_of, beam_size):
    translator = make_translator(parameters_of, beam_size=beam_size)
    for text in (TEXT, "the dog", "le chat noir 😀"):
        trace = trace_sentence(translator, text)
        assert list(trace.hypotheses) == translator.translate([text])[0]
        assert trace.translation == translator(text)
        assert len(trace.beam.returned) == len(trace.hypotheses)
        assert trace.reference_trace is None and trace.reference is None


def test_a_beam_saw_the_log_probabilities_of_the_trace(parameters_of):
    trace = trace_sentence(make_translator(parameters_of), TEXT)
    nodes, checked = trace.beam.nodes, 0
    on_path = {-1: 0}
    number = trace.beam.returned[0]
    while number != -1:
        on_path[number] = nodes[number].step + 1
        number = nodes[number].parent
    for node in nodes:
        if node.parent in on_path and node.step == on_path[node.parent]:
            before = 0.0 if node.parent == -1 else nodes[node.parent].log_prob
            seen = trace.decoder.log_probs[node.step, node.token]
            assert node.log_prob - before == pytest.approx(seen, abs=1e-5)
            checked += 1
    assert checked > len(trace.target_ids)


def test_the_decoder_saw_every_log_probability_of_the_trace(parameters_of, monkeypatch):
    seen = {}

    @dataclass(frozen=True)
    class Watched(Greedy):
        def advance(self, space, step, log_probs, state):
            jax.debug.callback(
                lambda i, p: seen.setdefault(int(i), np.asarray(p)), step.index, log_probs[0, 0]
            )
            return super().advance(space, step, log_probs, state)

    translator = make_translator(parameters_of, beam_size=1)
    trace = trace_sentence(translator, TEXT)
    monkeypatch.setattr(translator_module, "make_strategy", lambda config: Watched())
    assert translator(TEXT) == trace.translation
    jax.effects_barrier()
    steps = len(trace.target_ids)
    assert sorted(seen) == list(range(steps)) and steps > 3
    np.testing.assert_allclose([seen[i] for i in range(steps)], trace.decoder.log_probs, atol=1e-5)


def test_scanned_layers_give_the_same_trace(parameters_of, stack_layers):
    config = small_model(norm="pre")
    plain = trace_sentence(make_translator(parameters_of, config), TEXT)
    scanned = make_translator(
        parameters_of,
        dataclasses.replace(config, scan_layers=True, remat=True),
        stack_layers(parameters_of(config)),
    )
    other = trace_sentence(scanned, TEXT)
    assert other.target_ids.tolist() == plain.target_ids.tolist()
    for side in ("encoder", "decoder"):
        one, two = vars(getattr(plain, side)), vars(getattr(other, side))
        assert one.keys() == two.keys()
        for name in one:
            close(two[name], one[name], 1e-5)


def test_low_precision_gives_float32_numbers(parameters_of):
    config = small_model(dtype="bfloat16", norm="pre")
    trace = trace_sentence(make_translator(parameters_of, config), TEXT)
    for numbers in (trace.encoder, trace.decoder):
        for name, array in vars(numbers).items():
            assert array.dtype == (np.int32 if name.endswith("_ids") else np.float32), name
    np.testing.assert_allclose(trace.encoder.attention.sum(axis=-1), 1.0, atol=1e-6)


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("pieces", [4, 32_000])
def test_the_smoothed_target_is_that_of_the_loss(pieces, eps):
    on, off = target_probabilities(pieces, eps)
    assert on == pytest.approx(1 - eps + eps / pieces, abs=2e-7)
    assert off == pytest.approx(eps / pieces, rel=1e-6, abs=0.0)
    assert on + (pieces - 1) * off == pytest.approx(1.0, abs=1e-6)


def test_the_layout_of_bertviz(parameters_of):
    trace = trace_sentence(make_translator(parameters_of), TEXT)
    arguments = bertviz_arguments(trace)
    sources, targets = len(trace.source_ids), len(trace.target_ids)
    shapes = {
        "encoder_attention": (1, 2, sources, sources),
        "decoder_attention": (1, 2, targets, targets),
        "cross_attention": (1, 2, targets, sources),
    }
    for name, shape in shapes.items():
        assert [layer.shape for layer in arguments[name]] == [shape] * 2
    assert (arguments["cross_attention"][1][0] == trace.decoder.cross_attention[1]).all()
    assert arguments["encoder_tokens"] == list(trace.source_pieces)
    assert arguments["decoder_tokens"] == list(trace.decoder_pieces)
    assert arguments.keys() == {*shapes, "encoder_tokens", "decoder_tokens"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(text=" \t"), "text .*blank"),
        (dict(text=TEXT, reference=" "), "reference .*blank"),
        (dict(text=TEXT, label_smoothing=1.5), "label_smoothing=1.5 .* 0 and 0.9"),
        (dict(text="a\udc80b"), "Unicode"),
    ],
)
def test_what_cannot_be_traced(parameters_of, arguments, words):
    with pytest.raises(InputError, match=words):
        trace_sentence(make_translator(parameters_of), **arguments)


def test_a_reference_beyond_the_learned_positions_is_refused(parameters_of):
    config = small_model(positions="learned")
    translator = make_translator(parameters_of, config)
    words = r"\d+ tokens .*64 learned positions"
    with pytest.raises(InputError, match=words):
        trace_sentence(translator, TEXT, "\U0001f600" * 20)


def test_a_warning_names_the_number_of_the_sentence(parameters_of, capsys):
    translator = make_translator(parameters_of, max_source_length=4)
    trace = trace_sentence(translator, TEXT, number=7)
    assert capsys.readouterr().err.startswith("warning: line 7 has ")
    assert len(trace.source_ids) == 4 and trace.source == TEXT
