"""Translations that begin with given words, and translations that are drawn."""

import dataclasses

import jax
import numpy as np
import pytest
from training_run import number_pairs

from jaxformer.config import MeshConfig
from jaxformer.decoding.program import translate_batch
from jaxformer.decoding.strategies import BeamSearch, Greedy, Sample
from jaxformer.decoding.translator import Translator
from jaxformer.errors import InputError
from jaxformer.model_config import TransformerConfig
from jaxformer.models.transformer import Transformer
from jaxformer.parallel.mesh import make_mesh
from jaxformer.parallel.sharding import parameter_shardings

CONFIG = TransformerConfig(
    vocab_size=23, num_encoder_layers=1, num_decoder_layers=2, d_model=16, d_ff=24, num_heads=2,
    max_length=9,
)  # fmt: skip
VARIANTS = {
    "post-norm": {},
    "pre-norm, rotary": {"norm": "pre", "positions": "rotary"},
    "learned, scanned": {"positions": "learned", "scan_layers": True},
}
BATCH, ROOM = 4, 9
INPUTS = np.random.default_rng(1).integers(3, 23, (BATCH, 6)).astype(np.int32)
INPUTS[1, 4:] = 0
LIMITS = np.array([9, 7, 9, 5], np.int32)
LINES = [source for source, _ in number_pairs(9, 17)]


def search(model, params, strategy, prompts=None, lengths=None):
    result = translate_batch(
        params, INPUTS, LIMITS, prompts, lengths,
        np.int32(5) if strategy.needs_key else None,
        np.arange(BATCH, dtype=np.int32) if strategy.needs_key else None,
        model=model, strategy=strategy, ids=(0, 0, 1, 2), max_length=ROOM,
    )  # fmt: skip
    return jax.device_get(result)


@pytest.mark.parametrize("strategy", [Greedy(), Sample(0.7, num_samples=2)], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_prefix_that_was_chosen_anyway_changes_nothing(
    parameters_of, stack_layers, variant, strategy
):
    """Every length of it, other lengths in other rows, up to the last learned position."""
    config = dataclasses.replace(CONFIG, **VARIANTS[variant])
    params = parameters_of(dataclasses.replace(config, scan_layers=False))
    params = stack_layers(params) if config.scan_layers else params
    model = Transformer(config)
    free = search(model, params, strategy)
    assert free.lengths[:, 0].max() == ROOM or strategy.needs_key
    prompts = np.where(free.tokens[:, 0] == 1, 0, free.tokens[:, 0])[:, : ROOM - 1]
    for length in range(ROOM):
        lengths = np.minimum((length + np.arange(BATCH) * 3) % ROOM, free.lengths[:, 0] - 1)
        found = search(model, params, strategy, prompts, lengths.astype(np.int32))
        for name in ("tokens", "lengths", "truncated"):
            one, other = (getattr(result, name)[:, 0] for result in (found, free))
            np.testing.assert_array_equal(one, other, err_msg=name)
        for name in ("log_probs", "scores"):
            one, other = (getattr(result, name)[:, 0] for result in (found, free))
            np.testing.assert_allclose(one, other, rtol=1e-5, err_msg=name)


@pytest.fixture(scope="module")
def translator(small_run):
    """Searches with three beams."""
    decoding = dataclasses.replace(small_run.config.decoding, beam_size=3)
    return Translator.from_workdir(small_run.workdir, decoding=decoding)


def beginnings(text):
    """Each beginning of a text that ends with a word."""
    words = text.split()
    return [" ".join(words[:count]) for count in range(len(words) + 1)]


def test_a_trained_model_goes_on_from_the_beginnings_of_its_own_translations(translator):
    pairs = [
        (line, prefix, hypotheses[0])
        for line, hypotheses in zip(LINES, translator.translate(LINES), strict=True)
        for prefix in beginnings(hypotheses[0].text)
    ]
    lines, prefixes, expected = zip(*pairs, strict=True)
    assert len(pairs) > 30
    for found, wanted in zip(translator.translate(lines, prefixes), expected, strict=True):
        assert found[0].text == wanted.text
        assert found[0].num_tokens == wanted.num_tokens
        assert found[0].score == pytest.approx(wanted.score, abs=2e-5)
        assert found[0].log_prob == pytest.approx(wanted.log_prob, abs=2e-5)


def test_other_words_than_its_own_are_kept_and_the_neighbours_left_alone(translator):
    lines = ["one two three", "four five", ""]
    free = translator.translate(lines)
    forced = translator.translate(lines, ["neuf", "", " "])
    assert [h.text.split()[0] for h in forced[0]] == ["neuf"] * 3
    assert free[0][0].text == "un deux trois" and forced[0][0].score < free[0][0].score
    assert [h.text for h in forced[1]] == [h.text for h in free[1]]
    assert forced[2] == free[2]


def test_eight_devices_translate_prefixes_and_draws_as_one(translator):
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    spread = Translator(
        translator.model,
        jax.device_put(translator.params, parameter_shardings(translator.params, mesh)),
        translator.source_tokenizer, translator.target_tokenizer, translator.config, mesh,
    )  # fmt: skip
    prefixes = ["", "huit", "neuf neuf"] * 3
    for options in ({"prefixes": prefixes}, {"prefixes": prefixes, "strategy": Sample(1.5)}):
        alone, together = (t.translate(LINES, **options) for t in (translator, spread))
        assert [h[0].text for h in alone] == [h[0].text for h in together]
        for one, other in zip(alone, together, strict=True):
            assert one[0].score == pytest.approx(other[0].score, abs=1e-4)


def test_draws_depend_on_seed_and_line_number_alone(translator):
    def draw(lines, **options):
        strategy = Sample(temperature=2.0)
        return [h[0].text for h in translator.translate(lines, strategy=strategy, **options)]

    whole = draw(LINES)
    assert draw(LINES) == whole
    assert draw(LINES[4:], first_line=5) == whole[4:]
    assert draw(["", "one", *LINES[2:]])[2:] == whole[2:]
    assert sum(one != other for one, other in zip(draw(LINES, seed=1), whole, strict=True)) > 4
    assert len(set(draw(LINES[:1] * 8))) > 4
    (three,) = translator.translate(LINES[:1], strategy=Sample(2.0, num_samples=3))
    assert three[0].text == whole[0] and len(three) == 3


@pytest.mark.parametrize(
    ("prefixes", "options", "message"),
    [
        (["un"], {}, "1 prefixes for 2 lines; give one for each line"),
        (["", "un"], {"first_line": 7}, "line 8 is blank, but its prefix is 'un'"),
        (["un " * 99, ""], {}, r"prefix of line 1: \d+ tokens and EOS .* limit .*--max_length"),
        (None, {"seed": -1}, "seed=-1 must be between 0 and"),
    ],
)
def test_prefixes_that_cannot_be_kept_are_refused(translator, prefixes, options, message):
    with pytest.raises(InputError, match=message):
        translator.translate(["one two", ""], prefixes, **options)


def test_a_special_piece_is_no_prefix(translator):
    """Whatever a vocabulary makes of `</s>`, no translation begins after its end."""

    class Literal(type(translator.target_tokenizer)):
        def encode(self, lines):
            return [[self.eos_id] if line == "</s>" else ids
                    for line, ids in zip(lines, super().encode(lines), strict=True)]  # fmt: skip

    target = Literal(translator.target_tokenizer.model)
    odd = Translator(
        translator.model, translator.params, translator.source_tokenizer, target, translator.config
    )
    with pytest.raises(InputError, match=r"prefix of line 1: token 0 is 1, EOS.*leave it out"):
        odd.translate(["one two"], ["</s>"])


def test_a_beam_of_one_keeps_prefixes_too(translator):
    (found,) = translator.translate(["one two"], ["neuf"], strategy=BeamSearch(1))
    assert found[0].text.startswith("neuf") and len(found) == 1
