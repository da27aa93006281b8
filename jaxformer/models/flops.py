"""Floating-point operations of the model's matrix products, counted from its shape."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxformer.model_config import TransformerConfig, is_gated


class Flops(NamedTuple):
    """Operations, a multiply-add as two.

    Attributes:
      weights: of products with parameters.
      attention: of scores and weighted sums.
    """

    weights: float
    attention: float

    @property
    def total(self) -> float:
        return self.weights + self.attention

    def times(self, factor: float) -> Flops:
        return Flops(factor * self.weights, factor * self.attention)


def forward_flops(
    config: TransformerConfig, source_lengths: np.ndarray, target_lengths: np.ndarray
) -> Flops:
    """Operations of the matrix products of one forward pass over the given sentence pairs.

    With S and T tokens in a pair:

        weights     2 [S L_e (4 D^2 + f D F) + S L_d 2 D^2     encoder; cross-attention keys, values
                     + T L_d (6 D^2 + f D F) + T D V]          decoder; logits
        attention   4 D (L_e S^2 + L_d T^2 + L_d S T)          scores and weighted sums

    f is 2, or 3 for a gated feed-forward. Only what the pairs need counts: no padding, and nothing
    computed again for `remat`. The causal half of the decoder's scores counts in full, as is the
    custom. Embedding look-ups, norms, softmax and the optimizer are left out.

    Args:
      config: shape of the model.
      source_lengths: `[N]` int, tokens with EOS.
      target_lengths: `[N]` int, tokens with EOS.

    Source: model FLOPs utilisation, Chowdhery et al. 2022 (PaLM), appendix B, for two stacks.
    """
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    per_source, per_target = _multiply_adds(config)
    source = np.asarray(source_lengths, np.float64)
    target = np.asarray(target_lengths, np.float64)
    scores = encoder * source @ source + decoder * (target @ target + source @ target)
    return Flops(
        weights=float(2.0 * (per_source * source.sum() + per_target * target.sum())),
        attention=float(4.0 * config.d_model * scores),
    )


def decoding_flops(
    config: TransformerConfig, *, rows: int, source_length: int, max_length: int, width: int
) -> tuple[Flops, Flops]:
    """Operations of a search: before its loop, and of one round, a token for each hypothesis.

    With B rows of S source tokens, W hypotheses of each and room for T tokens:

        before     2 B [S L_e (4 D^2 + f D F) + S L_d 2 D^2] and 4 B D L_e S^2
        a round    2 B W [L_d (6 D^2 + f D F) + D V]         and 4 B W D L_d (T + S)

    Every round attends to all T places of the cache, as the compiled program does. So T rounds with
    one hypothesis, and what is before them, are `forward_flops` of B pairs of S and T tokens.
    """
    per_source, per_target = _multiply_adds(config)
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    before = Flops(
        weights=2.0 * rows * source_length * per_source,
        attention=4.0 * rows * config.d_model * encoder * source_length**2,
    )
    hypotheses = rows * width
    a_round = Flops(
        weights=2.0 * hypotheses * per_target,
        attention=4.0 * hypotheses * config.d_model * decoder * (max_length + source_length),
    )
    return before, a_round


def _multiply_adds(config: TransformerConfig) -> tuple[int, int]:
    """Multiply-adds with parameters for each source and each target token."""
    d_model = config.d_model
    matrices = 3 if is_gated(config.activation) else 2
    feed_forward = matrices * d_model * config.d_ff
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    per_source = encoder * (4 * d_model**2 + feed_forward) + decoder * 2 * d_model**2
    per_target = decoder * (6 * d_model**2 + feed_forward) + d_model * config.output_vocab_size
    return per_source, per_target
