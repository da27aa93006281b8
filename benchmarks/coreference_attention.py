"""Which heads attend from a pronoun to its noun: python benchmarks/coreference_attention.py

The sentences are fresh pronoun sentences of the built-in corpus: "The animal didn't cross the
street because it was too tired." The model reads them with their reference translations. A head
hits if the strongest attention of the pronoun, excluding its own position, is on a piece of the
referent. `reading` is the decoder's step with the pronoun as its input, `writing` the step before,
which has to choose between il and elle.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.tables import markdown_table  # noqa: E402
from jaxformer.data.builtin_corpus import CoreferenceSentence, coreference_sentences  # noqa: E402
from jaxformer.data.tokenizers import SPACE_MARK  # noqa: E402
from jaxformer.decoding.translator import Translator  # noqa: E402
from jaxformer.ops.losses import shift_right  # noqa: E402

ROWS = 50  # sentences in a batch


class Places(NamedTuple):
    """Numbers of the pieces of a sentence's pronoun and of the nouns, on one side."""

    pronoun: list[int]
    referent: list[int]
    other: list[int]


class Head(NamedTuple):
    """One head's hits; `other` counts how often it attends to the wrong noun instead."""

    kind: str
    layer: int
    head: int
    right: float  # share of the sentences
    other: float


def piece_spans(pieces: Sequence[str], text: str) -> list[tuple[int, int]]:
    """The characters of `text` that each piece covers: (first, one past the last)."""
    spelled = "".join(pieces).replace(SPACE_MARK, " ")
    start = -(len(spelled) - len(text))  # the mark that the vocabulary puts before the first word
    if spelled[-start:] != text:
        raise ValueError(f"the pieces spell {spelled!r} and not {text!r}")
    spans = []
    for piece in pieces:
        spans.append((max(start, 0), start + len(piece)))
        start += len(piece)
    return spans


def overlapping(spans: Sequence[tuple[int, int]], place: tuple[int, int]) -> list[int]:
    """Numbers of the pieces that share a character with `place`."""
    return [i for i, span in enumerate(spans) if span[0] < place[1] and place[0] < span[1]]


def find_places(tokenizer, ids: Sequence[int], sentence: CoreferenceSentence, side: str) -> Places:
    """Where the pronoun and the nouns stand among the pieces of `side`, en or fr."""
    spans = piece_spans(tokenizer.pieces(ids), getattr(sentence, side))
    return Places(*(overlapping(spans, getattr(mention, side)) for mention in sentence[2:]))


def hits(weights: np.ndarray, queries: list[int], aside: list[int], wanted: list[int]):
    """Whether each head's strongest key is wanted.

    Args:
      weights: `[L, N, T, S]`.
      queries: rows, averaged.
      aside: keys that are excluded.
      wanted: keys.

    Returns:
      bool `[L, N]`.
    """
    attention = weights[:, :, queries].mean(axis=2)
    attention[..., aside] = -1.0
    return np.isin(attention.argmax(axis=-1), wanted)


@partial(jax.jit, static_argnames="model")
def run_model(params, inputs, inputs_mask, decoder_inputs, *, model):
    """The attention weights of a batch."""
    return model.apply(
        {"params": params},
        inputs,
        decoder_inputs,
        inputs_mask=inputs_mask,
        return_attention=True,
    ).attention


def rows_of(all_ids: list[list[int]], tokenizer) -> np.ndarray:
    """Ids with EOS, padded to one length."""
    rows = np.full((len(all_ids), max(map(len, all_ids)) + 1), tokenizer.pad_id, np.int32)
    for row, ids in zip(rows, all_ids, strict=True):
        row[: len(ids) + 1] = [*ids, tokenizer.eos_id]
    return rows


def measure(translator: Translator, sentences: list[CoreferenceSentence]) -> list[Head]:
    """All heads of all kinds of attention, best first."""
    source, target = translator.source_tokenizer, translator.target_tokenizer
    english = source.encode([sentence.en for sentence in sentences])
    french = target.encode([sentence.fr for sentence in sentences])
    inputs, targets = rows_of(english, source), rows_of(french, target)
    decoder_inputs = np.asarray(shift_right(targets, target.bos_id))
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for first in range(0, len(sentences), ROWS):
        batch = slice(first, first + ROWS)
        mask = inputs[batch] != source.pad_id
        weights = jax.device_get(
            run_model(
                translator.params, inputs[batch], mask, decoder_inputs[batch],
                model=translator.model,
            )
        )  # fmt: skip
        for row, sentence in enumerate(sentences[batch]):
            en = find_places(source, english[first + row], sentence, "en")
            fr = find_places(target, french[first + row], sentence, "fr")
            encoder, decoder, cross = (kind[:, row] for kind in weights)
            for kind, arguments, right, wrong in _questions(encoder, decoder, cross, en, fr):
                both = hits(*arguments, right), hits(*arguments, wrong)
                found.setdefault(kind, []).append(both)
    heads = []
    for kind, answers in found.items():
        right, other = np.mean(answers, axis=0)
        heads += [
            Head(kind, layer, head, float(right[layer, head]), float(other[layer, head]))
            for layer, head in np.ndindex(right.shape)
        ]
    return sorted(heads, key=lambda head: -head.right)


def _questions(encoder, decoder, cross, en: Places, fr: Places):
    """(kind, (weights, rows, keys aside), pieces of the right noun, of the other one)."""
    # Piece i of the translation is what step i writes and what step i + 1 reads.
    reading, writing = [piece + 1 for piece in fr.pronoun], fr.pronoun[:1]
    right, wrong = ([piece + 1 for piece in noun] for noun in (fr.referent, fr.other))
    yield "encoder self", (encoder, en.pronoun, en.pronoun), en.referent, en.other
    yield "decoder self, reading", (decoder, reading, reading), right, wrong
    yield "decoder self, writing", (decoder, writing, writing), right, wrong
    yield "cross, reading", (cross, reading, []), en.referent, en.other
    yield "cross, writing", (cross, writing, []), en.referent, en.other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", default="runs/pocket", help="a run on the built-in corpus")
    parser.add_argument("--checkpoint", default="best")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2026, help="of the sentences")
    parser.add_argument("--heads", type=int, default=12, help="lines of the table")
    args = parser.parse_args()
    translator = Translator.from_workdir(args.workdir, checkpoint=args.checkpoint)
    heads = measure(translator, coreference_sentences(args.sentences, args.seed))
    print(
        f"{args.sentences} sentences; layers and heads from 0; best first of {len(heads)} heads\n"
    )
    header = ["attention", "layer", "head", "right noun", "other noun"]
    print(
        markdown_table(
            header,
            [
                [
                    head.kind,
                    str(head.layer),
                    str(head.head),
                    f"{head.right:.1%}",
                    f"{head.other:.1%}",
                ]
                for head in heads[: args.heads]
            ],
        )
    )


if __name__ == "__main__":
    main()
