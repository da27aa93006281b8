"""Floating-point operations that training needs, counted from the model's shape."""

from __future__ import annotations

import numpy as np

from jaxformer.model_config import TransformerConfig


def training_flops(
    config: TransformerConfig, source_lengths: np.ndarray, target_lengths: np.ndarray
) -> float:
    """Operations of the matrix products of one update on the given sentence pairs.

    With S and T tokens in a pair, a multiply-add as two operations, and the backward pass as twice
    the forward one:

        6 [S L_e (4 D^2 + f D F) + S L_d 2 D^2            encoder; cross-attention keys and values
           + T L_d (6 D^2 + f D F) + T D V                 decoder; logits
           + 2 D (L_e S^2 + L_d T^2 + L_d S T)]            scores and weighted sums

    f is 2, or 3 for a gated feed-forward. Only what the pairs need counts: no padding, and nothing
    computed again for `remat`. The causal half of the decoder's scores counts in full, as is the
    custom. Embedding look-ups, norms, softmax and the optimizer are left out.

    Args:
      config: shape of the model.
      source_lengths: `[N]` int, tokens with EOS.
      target_lengths: `[N]` int, tokens with EOS.

    Source: model FLOPs utilisation, Chowdhery et al. 2022 (PaLM), appendix B, for two stacks.
    """
    d_model = config.d_model
    matrices = 3 if config.activation.endswith("glu") else 2
    feed_forward = matrices * d_model * config.d_ff
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    per_source = encoder * (4 * d_model**2 + feed_forward) + decoder * 2 * d_model**2
    per_target = decoder * (6 * d_model**2 + feed_forward) + d_model * config.output_vocab_size
    source = np.asarray(source_lengths, np.float64)
    target = np.asarray(target_lengths, np.float64)
    scores = encoder * source @ source + decoder * (target @ target + source @ target)
    return float(
        6.0 * (per_source * source.sum() + per_target * target.sum() + 2 * d_model * scores)
    )
