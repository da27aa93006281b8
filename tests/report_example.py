"""A report by the schema of `page_data`, invented: its numbers agree with each other, as a model's.

The beam is a real beam search over an invented language model, the attention rows sum to 1, the
sum is embedding plus positions, and the logits belong to the log-probabilities.
"""

from __future__ import annotations

import math
import zlib

import numpy as np

from jaxformer.visualization.packed_arrays import pack_floats, pack_weights
from jaxformer.visualization.page_data import VERSION

VOCAB_SIZE = 4000
EOS, BOS = "</s>", "<s>"
SOURCE = "▁The ▁animal ▁did n 't ▁cross ▁the ▁street ▁because ▁it ▁was ▁too ▁t ired ."
TARGET = "▁L ' animal ▁n ' a ▁pas ▁travers é ▁la ▁rue ▁parce ▁qu ' il ▁était ▁trop ▁fatigu é ."
REFERENCE = "▁L ' animal ▁n ' a ▁pas ▁travers é ▁la ▁route ▁car ▁il ▁était ▁trop ▁fatigu é ."
LEXICON = tuple(
    "▁le ▁la ▁un ▁une ▁et ▁il ▁elle ▁est ▁était ▁trop ▁large ▁chat ▁rue ▁route ▁chemin ▁car "
    "▁animal ▁pas ▁plus ▁de ▁ne ▁que ▁qui ▁dans ▁sur e é er s ' , ▁noir ▁petit ▁grand".split()
)


def example_report(sentences=None, **model) -> dict:
    """A whole report; `sentences` are those of `example_sentence`, by default three."""
    shape = {
        "d_model": 64,
        "num_heads": 8,
        "num_encoder_layers": 3,
        "num_decoder_layers": 3,
    } | model
    return {
        "version": VERSION,
        "model": {
            "d_ff": 4 * shape["d_model"],
            "norm": "post",
            "positions": "sinusoidal",
            "activation": "relu",
            "vocab_size": VOCAB_SIZE,
            "label_smoothing": 0.1,
            "source_language": "en",
            "target_language": "fr",
            "checkpoint": "best (step 7200)",
            "encoder_layers": list(range(shape["num_encoder_layers"])),
            "decoder_layers": list(range(shape["num_decoder_layers"])),
            **shape,
        },
        "sentences": sentences
        or [
            example_sentence(SOURCE, TARGET, reference=REFERENCE, looks={9: 1}, **shape),
            example_sentence("▁The ▁cat ▁is ▁black .", "▁Le ▁chat ▁est ▁noir .", **shape),
            example_sentence("▁th anks", "▁merci", beam_width=1, **shape),
        ],
    }


def example_sentence(
    source: str,
    target: str,
    *,
    reference: str | None = None,
    looks: dict[int, int] | None = None,
    beam_width: int = 4,
    d_model: int = 64,
    num_heads: int = 8,
    num_encoder_layers: int = 3,
    num_decoder_layers: int = 3,
) -> dict:
    """One sentence; `source`, `target` and `reference` are pieces with spaces between them.

    `looks`: source pieces (from 0) that one head points to another piece.
    """
    random = np.random.default_rng(zlib.crc32(source.encode()))
    source_pieces = piece_list([*source.split(" "), EOS])
    beam, best = search([*target.split(" "), EOS], beam_width)
    target_pieces = piece_list(best)
    decoder_pieces = piece_list([BOS, *best[:-1]])
    rows, steps = len(source_pieces), len(target_pieces)
    language = [*target.split(" "), EOS]
    distributions = [distribution(tuple(best[:t]), language) for t in range(steps)]
    chosen = [choice(d, piece) for d, piece in zip(distributions, best, strict=True)]
    total = sum(one["log_prob"] for one in chosen)
    return {
        "source": detokenized(source.split(" ")),
        "translation": detokenized(best[:-1]),
        "reference": None if reference is None else detokenized(reference.split(" ")),
        "score": beam["returned"][0]["score"],
        "log_prob": total,
        "truncated": beam["returned"][0]["truncated"],
        "source_pieces": source_pieces,
        "target_pieces": target_pieces,
        "decoder_pieces": decoder_pieces,
        "encoder": {
            **states(random, rows, num_encoder_layers, d_model),
            "attention": attention(random, num_encoder_layers, num_heads, rows, rows, looks),
        },
        "decoder": {
            **states(random, steps, num_decoder_layers, d_model),
            "self_attention": attention(
                random, num_decoder_layers, num_heads, steps, steps, causal=True
            ),
            "cross_attention": attention(random, num_decoder_layers, num_heads, steps, rows),
        },
        "steps": [
            {
                "top": [choice(d, piece) for piece in ranked(d)[:10]],
                "chosen": one,
                "entropy": entropy(d),
                "layers": lens(random, d, one, num_decoder_layers),
            }
            for d, one in zip(distributions, chosen, strict=True)
        ],
        "reference_steps": reference and reference_steps([*reference.split(" "), EOS], language),
        "beam": beam,
    }


def piece_id(text: str) -> int:
    return {EOS: 1, BOS: 2}.get(text) or 4 + zlib.crc32(text.encode()) % (VOCAB_SIZE - 4)


def piece_list(texts: list[str]) -> list[dict]:
    pieces, word = [], -1
    for text in texts:
        word += text.startswith("▁") or text in (EOS, BOS) or not pieces
        pieces.append({"id": piece_id(text), "text": text, "word": word})
    return pieces


def detokenized(texts: list[str]) -> str:
    return "".join(texts).replace("▁", " ").strip()


def distribution(prefix: tuple[str, ...], language: list[str]) -> dict[str, float]:
    """Log-probability of each piece after a beginning; 3 % of the mass is on pieces unnamed."""
    random = np.random.default_rng(zlib.crc32(" ".join(prefix).encode()))
    pieces = list(dict.fromkeys([*LEXICON, *language]))
    scores = random.normal(0.0, 1.3, len(pieces))
    expected = language[len(prefix)] if len(prefix) < len(language) else EOS
    scores[pieces.index(expected)] += random.uniform(5.5, 8.0)
    scores[pieces.index(EOS)] -= 4.0 if expected != EOS else 0.0
    log_probs = scores - np.log(np.exp(scores).sum()) + math.log(0.97)
    return dict(zip(pieces, log_probs.tolist(), strict=True))


def ranked(log_probs: dict[str, float]) -> list[str]:
    return sorted(log_probs, key=log_probs.get, reverse=True)


def candidate(log_probs: dict[str, float], piece: str) -> dict:
    return {"id": piece_id(piece), "text": piece, "log_prob": log_probs[piece]}


def choice(log_probs: dict[str, float], piece: str) -> dict:
    return {**candidate(log_probs, piece), "logit": log_probs[piece] + 9.25}


def entropy(log_probs: dict[str, float]) -> float:
    rest = 0.03
    named = -sum(math.exp(x) * x for x in log_probs.values())
    return named - rest * math.log(rest / (VOCAB_SIZE - len(log_probs)))


def lens(random, log_probs, chosen, layers: int) -> list[list[dict]]:
    """Early layers mix the choices up; the last says what the model says."""
    found = []
    for layer in range(layers):
        texts = ranked(log_probs)[:3]
        probs = np.array([math.exp(log_probs[text]) for text in texts])
        if layer < layers - 1:
            texts = list(random.choice(ranked(log_probs)[: 14 - 10 * layer // layers], 3, False))
            probs = np.sort(random.dirichlet([1.0, 0.6, 0.5, 1.5])[:3])[::-1]
        found.append(
            [
                {"id": piece_id(text), "text": str(text), "prob": float(prob)}
                for text, prob in zip(texts, probs, strict=True)
            ]
        )
    return found


def reference_steps(pieces: list[str], language: list[str]) -> dict:
    known = [tuple(pieces[:t]) for t in range(len(pieces))]
    every = [distribution(prefix, [*language, *pieces]) for prefix in known]
    for t, d in enumerate(every):
        d[pieces[t]] = max(d[pieces[t]], -2.2)
        excess = math.log(sum(math.exp(x) for x in d.values()) / 0.97)
        every[t] = {text: x - excess for text, x in d.items()}
    log_probs = [d[piece] for d, piece in zip(every, pieces, strict=True)]
    return {
        "pieces": piece_list(pieces),
        "log_probs": log_probs,
        "losses": [0.9 * -x + 0.1 * 9.0 for x in log_probs],
        "entropy": [entropy(d) for d in every],
        "smoothed": {"on": 0.9 + 0.1 / VOCAB_SIZE, "off": 0.1 / VOCAB_SIZE},
        "top": [[candidate(d, piece) for piece in ranked(d)[:10]] for d in every],
    }


def search(language: list[str], width: int) -> tuple[dict, list[str]]:
    """Beam search by the rules of `BeamSearch`, its candidates recorded; with the best result."""
    nodes, alive, finished = [], [(-1, (), 0.0)], []
    for step in range(len(language) + 6):
        candidates = [
            (total + gain, parent, (*prefix, piece))
            for parent, prefix, total in alive
            for piece, gain in distribution(prefix, language).items()
        ]
        candidates.sort(key=lambda one: -one[0])
        alive = []
        for place, (total, parent, prefix) in enumerate(candidates[: 2 * width]):
            score = None
            if prefix[-1] == EOS:
                state = "finished" if place < width else "dropped"
                score = total / ((5 + len(prefix)) / 6) ** 0.6 if place < width else None
            else:
                state = "kept" if len(alive) < width else "dropped"
            if state == "kept":
                alive.append((len(nodes), prefix, total))
            if state == "finished":
                finished.append((score, len(nodes), prefix, total))
            nodes.append(
                {
                    "parent": parent,
                    "step": step,
                    "text": prefix[-1],
                    "log_prob": total,
                    "score": score,
                    "state": state,
                    "returned": None,
                }
            )
        if len(finished) >= width:
            break
    finished = sorted(finished, key=lambda one: -one[0])[:width]
    for rank, (_, node, *_) in enumerate(finished):
        nodes[node]["returned"] = rank
    returned = [
        {
            "text": detokenized(prefix[:-1]),
            "score": score,
            "log_prob": total,
            "node": node,
            "truncated": False,
        }
        for score, node, prefix, total in finished
    ]
    beam = {
        "strategy": "greedy" if width == 1 else "beam",
        "width": width,
        "length_penalty": None if width == 1 else "gnmt",
        "alpha": None if width == 1 else 0.6,
        "returned": returned,
        "nodes": nodes,
    }
    return beam, list(finished[0][2])


def states(random, rows: int, layers: int, width: int) -> dict:
    embedding = random.normal(0.0, 1.0, (rows, width)).astype(np.float32)
    angles = np.arange(rows)[:, None] / 10_000.0 ** (np.arange(0, width, 2) / width)
    positions = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(rows, width)
    positions = positions.astype(np.float32)
    outputs, x = [], embedding + positions
    for _ in range(layers):
        x = x + 0.8 * x @ random.normal(0.0, width**-0.5, (width, width))
        x = x + 0.5 * x.mean(0)
        x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
        outputs.append(x)
    return {
        "embedding": pack_floats(embedding),
        "positions": pack_floats(positions),
        "sum": pack_floats(embedding + positions),
        "layers": pack_floats(np.stack(outputs)),
        "final_norm": None,
    }


def attention(random, layers, heads, rows, columns, looks=None, causal=False) -> dict:
    """Heads with habits: the same place, the one before, the one after, the end, or diffuse."""
    weights = np.empty((layers, heads, rows, columns))
    r, c = np.arange(rows)[:, None] * columns / rows, np.arange(columns)[None]
    for layer in range(layers):
        for head in range(heads):
            habit = (head + layer) % 5
            centre = np.clip(r + (0, -1, 1, columns, 0)[habit], 0, columns - 1)
            sharp = 0.12 if habit == 4 else 2.0
            scores = -sharp * np.abs(c - centre) + random.normal(0, 0.7, (rows, columns))
            if looks and habit in (2, 4) and layer > 0:
                for query, key in looks.items():
                    scores[query, key] = scores[query].max() + 2.5
            if causal:
                scores = np.where(c <= np.arange(rows)[:, None], scores, -np.inf)
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            weights[layer, head] = scores / scores.sum(-1, keepdims=True)
    return pack_weights(weights)
