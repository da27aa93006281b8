"""The data of an HTML report: plain values for JSON, whose fields `SCHEMA` lists.

Pieces appear as the vocabulary spells them. Logarithms are natural; probabilities and entropies
(nats) are those of the model's own distribution.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxformer.config import Config
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.decoding.strategies import BeamSearch, Greedy
from jaxformer.errors import InputError
from jaxformer.visualization.forced_model import DecoderTrace, EncoderTrace
from jaxformer.visualization.packed_arrays import pack_floats, pack_weights
from jaxformer.visualization.trace import ReferenceTrace, SentenceTrace
from jaxformer.visualization.words import word_indices

VERSION = 2
# Every field that `page_data` writes and the page reads, by kind of object; a test checks both
# sides. `A[...]` is a packed array of this shape, see `packed_arrays`.
SCHEMA = {
    "Report": {"version": "int", "model": "Model", "sentences": "[Sentence]"},
    "Model": {
        "d_model": "int", "d_ff": "int", "num_heads": "int",
        "num_encoder_layers": "int", "num_decoder_layers": "int",
        "encoder_layers": "[int]", "decoder_layers": "[int]",  # that the arrays hold, from 0
        "norm": "str", "positions": "str", "activation": "str",
        "vocab_size": "int", "label_smoothing": "float",
        "source_language": "str", "target_language": "str", "checkpoint": "str",
    },
    "Sentence": {
        "source": "str", "translation": "str", "reference": "str | null",
        "score": "float", "log_prob": "float", "truncated": "bool",  # of the translation
        "source_pieces": "[Piece]", "target_pieces": "[Piece]",  # EOS last
        "decoder_pieces": "[Piece]",  # what the decoder reads: BOS first
        "encoder": "Encoder", "decoder": "Decoder",
        "steps": "[Step]", "reference_steps": "Reference | null", "beam": "Beam",
    },
    "Piece": {"id": "int", "text": "str", "word": "int"},  # words are numbered from 0
    "Encoder": {
        "embedding": "A[S, D]", "positions": "A[S, D]", "sum": "A[S, D]", "layers": "A[L, S, D]",
        "final_norm": "A[S, D] | null",  # null with post-norm
        "attention": "A[L, N, S, S]",
    },
    "Decoder": {
        "embedding": "A[T, D]", "positions": "A[T, D]", "sum": "A[T, D]", "layers": "A[L, T, D]",
        "final_norm": "A[T, D] | null",
        "self_attention": "A[L, N, T, T]", "cross_attention": "A[L, N, T, S]",
    },
    "Step": {  # the ten most probable pieces, and three that each layer would say
        "top": "[Choice]", "chosen": "Choice", "entropy": "float", "layers": "[[Guess]]",
    },
    "Choice": {"id": "int", "text": "str", "log_prob": "float", "logit": "float"},
    "Guess": {"id": "int", "text": "str", "prob": "float"},
    "Reference": {  # fed with the reference; losses are label-smoothed
        "pieces": "[Piece]", "log_probs": "[float]", "losses": "[float]", "entropy": "[float]",
        "smoothed": "Smoothed", "top": "[[Candidate]]",
    },
    "Smoothed": {"on": "float", "off": "float"},  # what training asks of the target, of each other
    "Candidate": {"id": "int", "text": "str", "log_prob": "float"},
    "Beam": {
        "strategy": "str", "width": "int",  # beam, greedy or sample
        "length_penalty": "str | null", "alpha": "float | null",  # of beam search
        "returned": "[Hypothesis]", "nodes": "[Node]",  # best first; step by step
    },
    "Hypothesis": {
        "text": "str", "score": "float", "log_prob": "float", "truncated": "bool",
        "node": "int",  # number of its last one
    },
    "Node": {  # parent -1: BOS; log_prob of the whole hypothesis; state: kept, dropped or finished
        "parent": "int", "step": "int", "text": "str", "log_prob": "float",
        "score": "float | null", "state": "str", "returned": "int | null",  # rank
    },
    "Array": {"shape": "[int]", "dtype": "str", "scale": "float", "data": "str"},
}  # fmt: skip
MAX_DATA_BYTES = 19_000_000  # keeps the page under 20 MB, which browsers open well
DECIMALS = 8  # of single numbers


def page_data(
    traces: Iterable[SentenceTrace],
    config: Config,
    tokenizers: tuple[Tokenizer, Tokenizer],
    checkpoint: str,
    *,
    layers: Sequence[int] | None = None,
    top_beams: int | None = None,
) -> dict[str, Any]:
    """Everything that the page of a report shows.

    Args:
      traces: of the sentences; consumed one by one, so a generator holds one at a time.
      config: of the run.
      tokenizers: source and target.
      checkpoint: its name, to be shown.
      layers: layers to show, from 0; None: all.
      top_beams: translations listed per search, best first; None: all that it returned.

    Returns:
      A `Report` of `SCHEMA`.

    Raises:
      InputError: a layer does not exist, there is no sentence, or the page would be too large.
    """
    model = config.model
    chosen = (
        choose_layers("encoder", model.num_encoder_layers, layers),
        choose_layers("decoder", model.num_decoder_layers, layers),
    )
    sentences, size = [], 0
    for trace in traces:
        sentence = sentence_data(trace, tokenizers, layers=chosen, top_beams=top_beams)
        sentences.append(sentence)
        size += len(json.dumps(sentence, ensure_ascii=False, allow_nan=False).encode())
        if size > MAX_DATA_BYTES:
            _refuse_size(sentences, size, chosen)
    if not sentences:
        raise InputError("there is no sentence to show; give at least one text")
    names = ("d_model", "d_ff", "num_heads", "num_encoder_layers", "num_decoder_layers", "norm")
    return {
        "version": VERSION,
        "model": {
            **{name: getattr(model, name) for name in (*names, "positions", "activation")},
            "encoder_layers": list(chosen[0]),
            "decoder_layers": list(chosen[1]),
            "vocab_size": model.output_vocab_size,
            "label_smoothing": config.training.label_smoothing,
            "source_language": config.data.source_language,
            "target_language": config.data.target_language,
            "checkpoint": checkpoint,
        },
        "sentences": sentences,
    }


def choose_layers(side: str, depth: int, layers: Sequence[int] | None) -> tuple[int, ...]:
    """Select the layers of a stack.

    Args:
      side: `encoder` or `decoder`, for the message.
      depth: number of layers in the stack.
      layers: layers to show, from 0; those the stack does not have are ignored; None: all.

    Returns:
      The selected layers, ascending.

    Raises:
      InputError: the stack has none of `layers`, or one is negative.
    """
    if layers is None:
        return tuple(range(depth))
    chosen = tuple(sorted({layer for layer in layers if 0 <= layer < depth}))
    if not chosen or min(layers) < 0:
        shown = ",".join(map(str, layers))
        raise InputError(
            f"--layers={shown}: the {side}'s {depth} layers are numbered 0 to {depth - 1}; name at "
            "least one of them, separated by commas"
        )
    return chosen


def sentence_data(
    trace: SentenceTrace,
    tokenizers: tuple[Tokenizer, Tokenizer],
    *,
    layers: tuple[Sequence[int], Sequence[int]],
    top_beams: int | None = None,
) -> dict[str, Any]:
    """One sentence of `page_data`.

    Args:
      trace: of the sentence.
      tokenizers: source and target.
      layers: of the encoder and of the decoder.
      top_beams: translations listed, best first; None: all that the search returned.

    Returns:
      A `Sentence` of `SCHEMA`.
    """
    source, target = tokenizers
    best = trace.hypotheses[0]
    return {
        "source": trace.source,
        "translation": trace.translation,
        "reference": trace.reference,
        "score": _number(best.score),
        "log_prob": _number(best.log_prob),
        "truncated": best.truncated,
        "source_pieces": piece_data(source, trace.source_ids, trace.source_pieces),
        "target_pieces": piece_data(target, trace.target_ids, trace.target_pieces),
        "decoder_pieces": piece_data(target, trace.decoder_ids, trace.decoder_pieces),
        "encoder": {
            **_stack_data(trace.encoder, layers[0]),
            "attention": pack_weights(trace.encoder.attention[list(layers[0])]),
        },
        "decoder": {
            **_stack_data(trace.decoder, layers[1]),
            "self_attention": pack_weights(trace.decoder.self_attention[list(layers[1])]),
            "cross_attention": pack_weights(trace.decoder.cross_attention[list(layers[1])]),
        },
        "steps": _step_data(trace, target, layers[1]),
        "reference_steps": _reference_data(trace, target),
        "beam": _beam_data(trace, target, top_beams),
    }


def piece_data(
    tokenizer: Tokenizer, ids: np.ndarray, pieces: Sequence[str]
) -> list[dict[str, Any]]:
    """Describe pieces.

    Args:
      tokenizer: of the pieces' side.
      ids: int `[T]`.
      pieces: their texts.

    Returns:
      A `Piece` of `SCHEMA` for each.
    """
    special = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id}
    ids = ids.tolist()
    words = word_indices(pieces, ids, special)
    return [
        {"id": token, "text": text, "word": word}
        for token, text, word in zip(ids, pieces, words, strict=True)
    ]


def _stack_data(stack: EncoderTrace | DecoderTrace, layers: Sequence[int]) -> dict[str, Any]:
    return {
        "embedding": pack_floats(stack.embedding),
        "positions": pack_floats(stack.positions),
        "sum": pack_floats(stack.sum),
        "layers": pack_floats(stack.layers[list(layers)]),
        "final_norm": None if stack.final_norm is None else pack_floats(stack.final_norm),
    }


def _step_data(trace: SentenceTrace, target: Tokenizer, layers: Sequence[int]) -> list[dict]:
    decoder = trace.decoder

    def lens(layer: int, step: int) -> list[dict[str, Any]]:
        ids = decoder.lens_ids[layer, step].tolist()
        probs = decoder.lens_probs[layer, step]
        return [
            {"id": token, "text": text, "prob": _number(prob)}
            for token, text, prob in zip(ids, target.pieces(ids), probs, strict=True)
        ]

    def choices(step: int, ids: list[int]) -> list[dict[str, Any]]:
        return [
            {**candidate, "logit": _number(decoder.logits[step, candidate["id"]])}
            for candidate in _candidates(decoder, step, ids, target)
        ]

    return [
        {
            "top": choices(step, decoder.top_ids[step].tolist()),
            "chosen": choices(step, [int(token)])[0],
            "entropy": _number(decoder.entropy[step]),
            "layers": [lens(layer, step) for layer in layers],
        }
        for step, token in enumerate(trace.target_ids)
    ]


def _candidates(
    distributions: DecoderTrace | ReferenceTrace, step: int, ids: list[int], target: Tokenizer
) -> list[dict[str, Any]]:
    return [
        {"id": token, "text": text, "log_prob": _number(distributions.log_probs[step, token])}
        for token, text in zip(ids, target.pieces(ids), strict=True)
    ]


def _reference_data(trace: SentenceTrace, target: Tokenizer) -> dict[str, Any] | None:
    reference = trace.reference_trace
    if reference is None:
        return None
    steps = range(len(reference.ids))
    on, off = trace.smoothed_target
    return {
        "pieces": piece_data(target, reference.ids, reference.pieces),
        "log_probs": [_number(reference.log_probs[i, reference.ids[i]]) for i in steps],
        "losses": [_number(loss) for loss in reference.losses],
        "entropy": [_number(entropy) for entropy in reference.entropy],
        "smoothed": {"on": on, "off": off},
        "top": [_candidates(reference, i, reference.top_ids[i].tolist(), target) for i in steps],
    }


def _beam_data(trace: SentenceTrace, target: Tokenizer, top_beams: int | None) -> dict[str, Any]:
    strategy, tree = trace.strategy, trace.beam
    is_beam_search = isinstance(strategy, BeamSearch)
    texts = target.pieces([node.token for node in tree.nodes])
    listed = len(tree.returned) if top_beams is None else min(top_beams, len(tree.returned))
    return {
        "strategy": "beam" if is_beam_search else "greedy" if strategy == Greedy() else "sample",
        "width": tree.width,
        "length_penalty": strategy.length_penalty if is_beam_search else None,
        "alpha": strategy.alpha if is_beam_search else None,
        "returned": [
            {
                "text": hypothesis.text,
                "score": _number(hypothesis.score),
                "log_prob": _number(hypothesis.log_prob),
                "node": node,
                "truncated": hypothesis.truncated,
            }
            for hypothesis, node in zip(trace.hypotheses[:listed], tree.returned, strict=False)
        ],
        "nodes": [
            {
                "parent": node.parent,
                "step": node.step,
                "text": text,
                "log_prob": _number(node.log_prob),
                "score": None if node.score is None else _number(node.score),
                "state": node.state,
                "returned": None if (node.returned or 0) >= listed else node.returned,
            }
            for node, text in zip(tree.nodes, texts, strict=True)
        ],
    }


def _number(value: float) -> float:
    return round(float(value), DECIMALS)


def _refuse_size(sentences: list[dict[str, Any]], size: int, chosen) -> None:
    number, last = len(sentences), sentences[-1]
    pieces = len(last["source_pieces"]) + len(last["target_pieces"])
    common = sorted(set(chosen[0]) & set(chosen[1]))
    repairs = ["shorter sentences"]
    if number > 1:
        repairs.insert(0, f"fewer sentences ({number - 1} of these fit)")
    if len(common) > 1:
        ends = common[-1:] if len(common) == 2 else [common[0], common[-1]]
        repairs.insert(0, f"--layers={','.join(map(str, ends))} to show fewer layers")
    raise InputError(
        f"sentence {number}, of {pieces} pieces on both sides, takes the data of the page to "
        f"{size / 1e6:.1f} MB; a page holds {MAX_DATA_BYTES / 1e6:.0f} MB at most. Use "
        f"{', or '.join(repairs)}"
    )
