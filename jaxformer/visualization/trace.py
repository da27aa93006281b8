"""One sentence's way through the model: every number between its text and its translation."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.decoding.engine import Strategy
from jaxformer.decoding.translator import Hypothesis, Translator, make_strategy
from jaxformer.errors import InputError, check_range
from jaxformer.ops.losses import label_smoothed_cross_entropy
from jaxformer.visualization.beam_tree import BeamTree, beam_tree
from jaxformer.visualization.forced_model import DecoderTrace, EncoderTrace, ForcedModel


@dataclass(frozen=True)
class ReferenceTrace:
    """The model fed with the reference instead of its own words, and what training asks of it.

    Attributes:
      ids: int32 `[R]`, EOS last.
      pieces: their text.
      logits, log_probs: `[R, V]`.
      entropy: `[R]` nats.
      top_ids: int32 `[R, 10]`.
      losses: `[R]` nats, label-smoothed.
    """

    ids: np.ndarray
    pieces: tuple[str, ...]
    logits: np.ndarray
    log_probs: np.ndarray
    entropy: np.ndarray
    top_ids: np.ndarray
    losses: np.ndarray


@dataclass(frozen=True)
class SentenceTrace:
    """A translation with everything that was computed for it.

    Attributes:
      source, translation, reference: text; the reference may be None.
      source_ids, source_pieces: S, EOS last.
      target_ids, target_pieces: T, of the translation, EOS last.
      decoder_ids, decoder_pieces: T, what the decoder reads: BOS, then the translation.
      encoder, decoder: their numbers, see `forced_model`.
      hypotheses: results of the search, best first; the first is the translation.
      strategy: of the search.
      beam: its tree.
      reference_trace: None without a reference.
      label_smoothing: eps of training.
      smoothed_target: `(on, off)`, the probability that training asks of the right piece, and of
        each other one; `(1, 0)` without label smoothing.
    """

    source: str
    translation: str
    reference: str | None
    source_ids: np.ndarray
    source_pieces: tuple[str, ...]
    target_ids: np.ndarray
    target_pieces: tuple[str, ...]
    decoder_ids: np.ndarray
    decoder_pieces: tuple[str, ...]
    encoder: EncoderTrace
    decoder: DecoderTrace
    hypotheses: tuple[Hypothesis, ...]
    strategy: Strategy
    beam: BeamTree
    reference_trace: ReferenceTrace | None
    label_smoothing: float
    smoothed_target: tuple[float, float]

    @property
    def chosen_log_probs(self) -> np.ndarray:
        """float32 `[T]`: the log-probability of each piece of the translation."""
        return self.decoder.log_probs[np.arange(len(self.target_ids)), self.target_ids]


def trace_sentence(
    translator: Translator,
    text: str,
    reference: str | None = None,
    *,
    label_smoothing: float = 0.1,
    number: int = 1,
) -> SentenceTrace:
    """Translate a sentence as `translator` does, and read off every station of the model.

    The search runs once, with its record. Then the model runs over source and translation with
    teacher forcing, which gives the numbers that the search saw step by step.

    Args:
      translator: model, vocabularies and settings of the search.
      text: the source sentence.
      reference: a right translation, to see what training would ask for at each step.
      label_smoothing: eps of the targets; the run's is `training.label_smoothing`.
      number: of the sentence, for warnings.

    Raises:
      InputError: a text is blank, or the reference is longer than the model's positions.
    """
    check_range("label_smoothing", label_smoothing, 0.0, 0.9)
    source, target = translator.source_tokenizer, translator.target_tokenizer
    ids, recorded, hypotheses = translator.record(text, number=number)
    tree = beam_tree(recorded)
    source_ids = np.array(ids, np.int32)
    target_ids = np.array(tree.tokens(tree.returned[0]), np.int32)
    forced = ForcedModel(translator, source_ids)
    decoder_ids, decoder = forced.decode(target_ids)
    return SentenceTrace(
        source=text,
        translation=hypotheses[0].text,
        reference=reference,
        source_ids=source_ids,
        source_pieces=tuple(source.pieces(source_ids)),
        target_ids=target_ids,
        target_pieces=tuple(target.pieces(target_ids)),
        decoder_ids=decoder_ids,
        decoder_pieces=tuple(target.pieces(decoder_ids)),
        encoder=forced.encoder,
        decoder=decoder,
        hypotheses=tuple(hypotheses),
        strategy=make_strategy(translator.config),
        beam=tree,
        reference_trace=(
            None if reference is None else _trace_reference(forced, reference, label_smoothing)
        ),
        label_smoothing=label_smoothing,
        smoothed_target=target_probabilities(
            translator.model.config.output_vocab_size, label_smoothing
        ),
    )


def target_probabilities(vocab_size: int, label_smoothing: float) -> tuple[float, float]:
    """What the loss asks of a distribution: for the right piece, and for each of the others.

    Read off the training loss itself: its gradient by the logits is `softmax(z) - target`.

    Args:
      vocab_size: V.
      label_smoothing: eps.

    Returns:
      `(on, off)`, with `on + (V - 1) off = 1`.
    """

    def loss(logits: jax.Array) -> jax.Array:
        return label_smoothed_cross_entropy(logits, jnp.int32(0), label_smoothing).loss

    # Only the right piece is likely, so that softmax is 1 there and 0 elsewhere, without rounding.
    logits = np.full(vocab_size, -1e4, np.float32)
    logits[0] = 0.0
    gradient = np.asarray(jax.grad(loss)(logits), np.float64)
    return 1.0 - float(gradient[0]), 0.0 - float(gradient[1])


def bertviz_arguments(trace: SentenceTrace) -> dict[str, list]:
    """The attention in the layout of `bertviz.head_view` and `bertviz.model_view`.

    Lists over layers of float32 `[1, N, T, S]`, and the pieces. bertviz wants tensors of PyTorch:
    map `torch.from_numpy` over the three lists and pass the dict as keyword arguments. Rows of the
    decoder stand for what it reads, BOS first.
    """

    def layers(weights: np.ndarray) -> list[np.ndarray]:
        return [layer[None] for layer in weights]

    return {
        "encoder_attention": layers(trace.encoder.attention),
        "decoder_attention": layers(trace.decoder.self_attention),
        "cross_attention": layers(trace.decoder.cross_attention),
        "encoder_tokens": list(trace.source_pieces),
        "decoder_tokens": list(trace.decoder_pieces),
    }


def _trace_reference(forced: ForcedModel, reference: str, label_smoothing: float) -> ReferenceTrace:
    tokenizer = forced.target_tokenizer
    if not reference.strip():
        raise InputError("the reference translation is blank; leave it out or give its text")
    ids = np.array([*tokenizer.encode([reference])[0], tokenizer.eos_id], np.int32)
    _, decoder = forced.decode(ids)
    losses = label_smoothed_cross_entropy(decoder.logits, ids, label_smoothing).loss
    return ReferenceTrace(
        ids,
        tuple(tokenizer.pieces(ids)),
        decoder.logits,
        decoder.log_probs,
        decoder.entropy,
        decoder.top_ids,
        np.asarray(losses),
    )
