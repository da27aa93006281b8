"""Translators of random parameters over a small vocabulary: each sentence another tree of beams."""

import functools

from jaxformer.config import DecodingConfig, TokenizerConfig
from jaxformer.data.tokenizer_training import train_tokenizer
from jaxformer.decoding.translator import Translator
from jaxformer.model_config import TransformerConfig
from jaxformer.models.transformer import Transformer

WORDS = (
    "the cat sat on the mat and the dog sat near the cat while the rain fell on the old house",
    "le chat noir dort sur le tapis et le chien regarde la pluie qui tombe sur la vieille maison",
)
TEXT = "the cat sat near the old house"


@functools.cache
def small_tokenizer(vocab_size=300):
    lines = [" ".join(line.split()[i : i + 6]) for line in WORDS for i in range(12)]
    return train_tokenizer(lines, TokenizerConfig(vocab_size=vocab_size), progress=False)


def small_model(**changes):
    sizes = dict(
        vocab_size=300, num_encoder_layers=2, num_decoder_layers=2, d_model=16, d_ff=24,
        num_heads=2, max_length=64,
    )  # fmt: skip
    return TransformerConfig(**(sizes | changes))


def make_translator(parameters_of, config=None, params=None, **decoding):
    """A translator of `config`, or of `small_model()`, with short translations."""
    config = config or small_model()
    settings = DecodingConfig(**(dict(beam_size=4, max_length_extra=6) | decoding))
    target = small_tokenizer(config.output_vocab_size)
    if params is None:
        params = parameters_of(config)
    return Translator(Transformer(config), params, small_tokenizer(), target, settings)
