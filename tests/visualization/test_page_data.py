"""The data of a page: what it holds, how exact it is, how arrays are packed, what is refused."""

import base64
import dataclasses
import json
import struct
import zlib

import numpy as np
import pytest
from random_translator import TEXT, make_translator, small_model
from report_example import example_report

from jaxformer.config import Config, TrainingConfig
from jaxformer.errors import InputError
from jaxformer.visualization import page_data as module
from jaxformer.visualization.packed_arrays import pack_floats, pack_weights, unpack
from jaxformer.visualization.page_data import choose_layers, page_data
from jaxformer.visualization.trace import trace_sentence

HARD = (
    "<script>alert('x')</script> & \"quotes\" \\ \u2028 \u0634\u0645\u0633 e\u0301te\u0301 "
    "\U0001f469\u200d\U0001f680 \u2581 </S>"
)


@pytest.fixture(scope="module")
def translator(parameters_of):
    return make_translator(parameters_of)


@pytest.fixture(scope="module")
def traces(translator):
    return [trace_sentence(translator, TEXT, "le chat"), trace_sentence(translator, HARD)]


def make_page(translator, traces, config=None, **options):
    config = config or Config(
        model=translator.model.config, training=TrainingConfig(label_smoothing=0.2)
    )
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    return page_data(traces, config, tokenizers, "1200", **options)


@pytest.fixture(scope="module")
def page(translator, traces):
    return json.loads(json.dumps(make_page(translator, traces), allow_nan=False))


def test_the_model(page):
    assert page["version"] == 2
    assert page["model"] == {
        "d_model": 16, "d_ff": 24, "num_heads": 2, "num_encoder_layers": 2,
        "num_decoder_layers": 2, "norm": "post", "positions": "sinusoidal", "activation": "relu",
        "encoder_layers": [0, 1], "decoder_layers": [0, 1], "vocab_size": 300,
        "label_smoothing": 0.2, "source_language": "en", "target_language": "fr",
        "checkpoint": "1200",
    }  # fmt: skip


def keys(value, path=""):
    """The path of every key; packed arrays are leaves, entries of lists all alike."""
    if isinstance(value, dict) and "dtype" not in value:
        return {path}.union(*(keys(inner, f"{path}.{name}") for name, inner in value.items()))
    if isinstance(value, list):
        return {path}.union(*(keys(inner, f"{path}[]") for inner in value))
    return {path}


def test_the_invented_report_of_the_pages_tests_has_the_same_keys(page):
    assert keys(page) == keys(example_report())


def test_states_are_those_of_the_trace_exactly(page, traces):
    for sentence, trace in zip(page["sentences"], traces, strict=True):
        for side in ("encoder", "decoder"):
            for name in ("embedding", "positions", "sum", "layers"):
                array = getattr(getattr(trace, side), name)
                found = unpack(sentence[side][name])
                assert found.shape == array.shape and (found == array).all()
            assert sentence[side]["final_norm"] is None


def test_attention_is_within_a_millionth_and_its_rows_sum_to_one(page, traces):
    for sentence, trace in zip(page["sentences"], traces, strict=True):
        for side, name in (
            ("encoder", "attention"), ("decoder", "self_attention"), ("decoder", "cross_attention"),
        ):  # fmt: skip
            found, array = unpack(sentence[side][name]), getattr(getattr(trace, side), name)
            assert found.shape == array.shape
            assert np.abs(found - array).max() < 1e-6
            assert (found.sum(axis=-1) == 1.0).all()
            assert (found[array == 0] == 0).all() and (found >= 0).all()


def test_numbers_of_the_steps(page, traces):
    for sentence, trace in zip(page["sentences"], traces, strict=True):
        decoder = trace.decoder
        assert len(sentence["steps"]) == len(trace.target_ids)
        for step, token, numbers in zip(
            sentence["steps"], trace.target_ids, range(len(trace.target_ids)), strict=True
        ):
            assert [c["id"] for c in step["top"]] == decoder.top_ids[numbers].tolist()
            assert step["chosen"]["id"] == token
            for choice in (*step["top"], step["chosen"]):
                found = decoder.log_probs[numbers, choice["id"]]
                assert choice["log_prob"] == pytest.approx(found, abs=1e-6)
                found = decoder.logits[numbers, choice["id"]]
                assert choice["logit"] == pytest.approx(found, abs=1e-6)
            assert step["entropy"] == pytest.approx(decoder.entropy[numbers], abs=1e-6)
            for layer in range(2):
                choices = step["layers"][layer]
                assert [c["id"] for c in choices] == decoder.lens_ids[layer, numbers].tolist()
                np.testing.assert_allclose(
                    [c["prob"] for c in choices], decoder.lens_probs[layer, numbers], atol=1e-6
                )


def test_texts_stay_what_they_are(page, translator, traces):
    for sentence, trace in zip(page["sentences"], traces, strict=True):
        assert sentence["source"] == trace.source
        assert sentence["translation"] == translator(trace.source)
        texts = [piece["text"] for piece in sentence["source_pieces"]]
        assert texts == translator.source_tokenizer.pieces(trace.source_ids)
        assert [p["id"] for p in sentence["decoder_pieces"]] == trace.decoder_ids.tolist()
        assert sentence["decoder_pieces"][0]["text"] == "<s>"
        words = [piece["word"] for piece in sentence["source_pieces"]]
        # Every word between spaces, and EOS; the text's own U+2581 is a byte or a space mark.
        assert words[0] == 0 and words[-1] == len(trace.source.split(" "))
    assert page["sentences"][1]["source"] == HARD


def test_the_reference(page, traces):
    found, reference = page["sentences"][0]["reference_steps"], traces[0].reference_trace
    assert page["sentences"][0]["reference"] == "le chat"
    assert page["sentences"][1]["reference_steps"] is page["sentences"][1]["reference"] is None
    assert [piece["id"] for piece in found["pieces"]] == reference.ids.tolist()
    chosen = reference.log_probs[np.arange(len(reference.ids)), reference.ids]
    np.testing.assert_allclose(found["log_probs"], chosen, atol=1e-6)
    np.testing.assert_allclose(found["losses"], reference.losses, atol=1e-6)
    assert found["smoothed"]["on"] + 299 * found["smoothed"]["off"] == pytest.approx(1, abs=1e-6)
    assert [[c["id"] for c in step] for step in found["top"]] == reference.top_ids.tolist()
    for step, candidates in enumerate(found["top"]):
        expected = [reference.log_probs[step, c["id"]] for c in candidates]
        np.testing.assert_allclose([c["log_prob"] for c in candidates], expected, atol=1e-6)


def test_the_beam(page, translator, traces):
    for sentence, trace in zip(page["sentences"], traces, strict=True):
        beam = sentence["beam"]
        assert (beam["strategy"], beam["width"]) == ("beam", 4)
        assert (beam["length_penalty"], beam["alpha"]) == ("gnmt", 0.6)
        texts = translator.target_tokenizer.pieces([node.token for node in trace.beam.nodes])
        for found, node, text in zip(beam["nodes"], trace.beam.nodes, texts, strict=True):
            assert (found["parent"], found["step"], found["text"], found["state"]) == (
                node.parent, node.step, text, node.state,
            )  # fmt: skip
            assert found["log_prob"] == pytest.approx(node.log_prob, abs=1e-6)
        for rank, (found, hypothesis) in enumerate(
            zip(beam["returned"], trace.hypotheses, strict=True)
        ):
            assert (found["text"], found["truncated"]) == (hypothesis.text, hypothesis.truncated)
            assert found["score"] == pytest.approx(hypothesis.score, abs=1e-6)
            assert beam["nodes"][found["node"]]["returned"] == rank
            assert beam["nodes"][found["node"]]["score"] == found["score"]


def test_fewer_translations_and_layers_on_request(translator, traces):
    page = make_page(translator, traces[:1], layers=[1], top_beams=2)
    sentence = page["sentences"][0]
    assert page["model"]["encoder_layers"] == page["model"]["decoder_layers"] == [1]
    for side, names in (
        ("encoder", ("layers", "attention")),
        ("decoder", ("layers", "self_attention", "cross_attention")),
    ):
        for name in names:
            assert sentence[side][name]["shape"][0] == 1
    assert (unpack(sentence["encoder"]["layers"])[0] == traces[0].encoder.layers[1]).all()
    lens = [[c["id"] for c in step["layers"][0]] for step in sentence["steps"]]
    assert lens == traces[0].decoder.lens_ids[1].tolist()
    assert len(sentence["beam"]["returned"]) == 2
    ranks = [n["returned"] for n in sentence["beam"]["nodes"] if n["returned"] is not None]
    assert sorted(ranks) == [0, 1]


def test_greedy_and_pre_norm(parameters_of):
    config = small_model(norm="pre")
    translator = make_translator(parameters_of, config, beam_size=1)
    trace = trace_sentence(translator, TEXT)
    sentence = make_page(translator, [trace])["sentences"][0]
    beam = sentence["beam"]
    assert (beam["strategy"], beam["width"], beam["alpha"]) == ("greedy", 1, None)
    assert (unpack(sentence["decoder"]["final_norm"]) == trace.decoder.final_norm).all()


def test_planes_by_hand():
    values = np.array([[1.5, -2.0, 0.1]], np.float32)
    packed = pack_floats(values)
    raw = zlib.decompress(base64.b64decode(packed["data"]))
    assert (packed["shape"], packed["dtype"], packed["scale"]) == ([1, 3], "f32", 1.0)
    found = [struct.unpack("<f", bytes(raw[plane * 3 + i] for plane in range(4)))[0]
             for i in range(3)]  # fmt: skip
    assert found == values[0].tolist()
    packed = pack_weights(np.array([[0.25, 0.75, 0.0]]))
    raw = zlib.decompress(base64.b64decode(packed["data"]))
    assert (packed["dtype"], packed["scale"]) == ("u32", 2.0**-21)
    whole = [sum(raw[plane * 3 + i] << 8 * plane for plane in range(4)) for i in range(3)]
    assert whole == [2**19, 3 * 2**19, 0]


@pytest.mark.parametrize("concentration", [0.01, 0.3, 5.0])
def test_weights_round_so_that_rows_sum_to_one(concentration):
    draw = np.random.default_rng(3)
    weights = draw.dirichlet(np.full(300, concentration), size=(2, 40)).astype(np.float32)
    packed = unpack(pack_weights(weights))
    assert np.abs(packed - weights).max() < 1e-6
    assert (packed.sum(axis=-1) == 1.0).all() and (packed >= 0).all()


def test_a_row_that_sums_to_one_but_for_rounding_and_one_that_sees_nothing():
    rows = np.array([[0.25, 0.75 + 3e-6], [0.0, 0.0], [1.0, 0.0]])
    assert unpack(pack_weights(rows)).sum(axis=-1).tolist() == [1.0, 0.0, 1.0]


def test_arrays_of_no_entries():
    assert unpack(pack_floats(np.zeros((0, 3), np.float32))).shape == (0, 3)


def test_which_layers():
    assert choose_layers("encoder", 3, None) == (0, 1, 2)
    assert choose_layers("encoder", 3, [5, 2, 0, 2]) == (0, 2)
    for layers in ([], [3], [-1, 0]):
        with pytest.raises(InputError, match="--layers=.* 0 to 2"):
            choose_layers("decoder", 3, layers)


def test_a_page_that_would_be_too_large_is_refused_with_repairs(translator, traces, monkeypatch):
    size = len(json.dumps(make_page(translator, traces[:1])["sentences"][0]))
    monkeypatch.setattr(module, "MAX_DATA_BYTES", size + 2000)
    taken = []

    def one_by_one():
        for trace in [traces[0], traces[1], traces[0]]:
            taken.append(trace)
            yield trace

    assert make_page(translator, traces[:1])["sentences"]
    words = r"sentence 2, .*\d+ pieces.*--layers=1 .*fewer sentences \(1 "
    with pytest.raises(InputError, match=words):
        make_page(translator, one_by_one())
    assert len(taken) == 2  # it stops at the first sentence too many


def test_no_sentence_is_no_page(translator):
    with pytest.raises(InputError, match="no sentence"):
        make_page(translator, [])


def test_the_runs_label_smoothing_is_shown(translator, traces):
    config = Config(model=translator.model.config)
    config = dataclasses.replace(config, training=TrainingConfig(label_smoothing=0.0))
    assert make_page(translator, traces[:1], config)["model"]["label_smoothing"] == 0.0
