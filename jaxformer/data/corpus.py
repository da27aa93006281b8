"""Sentence pairs tokenised once into memory-mapped arrays, kept in a cache directory."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.config import DataConfig
from jaxformer.data.corpus_cache import (
    ArrayWriter,
    building_folder,
    cache_directory,
    check_unchanged,
    load_entry,
    move_away,
    publish,
    remove_stale,
    write_manifest,
)
from jaxformer.errors import InputError

FORMAT_VERSION = 1
CHUNK_PAIRS = 8192  # tokenised at once; bounds the memory for a corpus of any size
SHOW_AFTER = 2.0  # seconds before a progress bar appears
ARRAYS = ("source_ids", "target_ids", "source_offsets", "target_offsets", "original_index")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusReport:
    """How many pairs were read, kept and dropped; each dropped pair has one reason."""

    read: int
    kept: int
    dropped_empty: int = 0  # a side without text or without tokens
    dropped_too_long: int = 0  # a side over max_length tokens, EOS included
    dropped_ratio: int = 0  # one side longer by more than max_length_ratio, EOS excluded
    max_length: int = 0  # the filters applied; 0: none
    max_length_ratio: float = 0.0

    def summary(self) -> str:
        """One line, e.g. `29,000 pairs read, 28,988 kept; dropped: 2 empty, 10 over ...`."""
        reasons = (
            (self.dropped_empty, "empty"),
            (self.dropped_too_long, f"over data.max_length={self.max_length}"),
            (self.dropped_ratio, f"over data.max_length_ratio={self.max_length_ratio:g}"),
        )
        dropped = ", ".join(f"{count:,} {reason}" for count, reason in reasons if count)
        line = f"{self.read:,} pairs read, {self.kept:,} kept"
        return f"{line}; dropped: {dropped}" if dropped else line


class SentenceLengths:
    """Token counts of N sentences, EOS included; only the requested slice is held in memory.

    Args:
      offsets: [N + 1] int64, where each sentence starts in the ids.
      change: maps stored lengths to the lengths to plan with, of the same shape; None: as stored.
    """

    def __init__(
        self, offsets: np.ndarray, change: Callable[[np.ndarray], np.ndarray] | None = None
    ):
        self._offsets, self._change = offsets, change

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, part: slice) -> np.ndarray:
        """[length of the slice] int32; the slice must have no step."""
        low, high, _ = part.indices(len(self))
        lengths = np.diff(self._offsets[low : max(low, high) + 1]).astype(np.int32)
        return lengths if self._change is None else self._change(lengths)


@dataclasses.dataclass(frozen=True, eq=False)
class TokenizedCorpus:
    """N sentence pairs as flat arrays of token ids; every sentence ends in EOS and has no BOS.

    The ids of source sentence i are `source_ids[source_offsets[i]:source_offsets[i + 1]]`.

    Args:
      source_ids, target_ids: [tokens] uint16 where the vocabulary fits, otherwise int32.
      source_offsets, target_offsets: [N + 1] int64.
      original_index: [N] int64, input line number (from 0) of each kept pair.
      report: how many pairs were read, kept and dropped.
    """

    source_ids: np.ndarray
    target_ids: np.ndarray
    source_offsets: np.ndarray
    target_offsets: np.ndarray
    original_index: np.ndarray
    report: CorpusReport

    def __len__(self) -> int:
        return len(self.original_index)

    @cached_property
    def source_lengths(self) -> np.ndarray:
        """[N] int32 tokens of each source sentence, EOS counted."""
        return SentenceLengths(self.source_offsets)[:]

    @cached_property
    def target_lengths(self) -> np.ndarray:
        """[N] int32 tokens of each target sentence, EOS counted."""
        return SentenceLengths(self.target_offsets)[:]

    def pair(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Source and target ids of one pair, each [length] in the stored dtype."""
        source = slice(self.source_offsets[index], self.source_offsets[index + 1])
        target = slice(self.target_offsets[index], self.target_offsets[index + 1])
        return self.source_ids[source], self.target_ids[target]


def prepare_corpus(
    source: Any,
    split: str,
    source_tokenizer: Any,
    target_tokenizer: Any,
    config: DataConfig,
    *,
    filters: bool,
    progress: bool,
) -> TokenizedCorpus:
    """Tokenise the pairs of `split`, or map them from the cache.

    Args:
      source: has `pairs(split)`, `fingerprint(split)` and `describe(split)`.
      split: train, validation or test.
      source_tokenizer, target_tokenizer: have `encode(lines)`, `vocab_size`, `eos_id` and
        `fingerprint`; one object may serve both sides.
      config: max_length and max_length_ratio of the filters, and cache_dir.
      filters: drop and count pairs that are empty, too long or too unequal (for training);
        False keeps every pair whole.
      progress: show a progress bar on stderr after two seconds.

    Returns:
      The corpus, its arrays memory-mapped.

    Raises:
      InputError: no pair is read or kept, the text changes meanwhile, or the cache cannot be
        written.
    """
    limits = (config.max_length, config.max_length_ratio) if filters else (0, 0.0)
    identity = {
        "format": FORMAT_VERSION,
        "source": source.fingerprint(split),
        "role": split,
        "tokenizers": [
            [tokenizer.fingerprint, tokenizer.vocab_size, tokenizer.eos_id]
            for tokenizer in (source_tokenizer, target_tokenizer)
        ],
        "filters": list(limits) if filters else None,
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    entry = cache_directory(config) / digest[:32]
    remove_stale(entry.parent)
    if entry.exists():
        try:
            return map_corpus(entry, identity)
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(f"{entry}: damaged ({error}); tokenising again", stacklevel=2)
            move_away(entry)
    with building_folder(entry) as building:
        tokenizers = source_tokenizer, target_tokenizer
        with progress_bar(progress) as bar:
            report = write_arrays(
                building, source.pairs(split), tokenizers, filters, limits, bar.update
            )
        check_unchanged(source, split, identity["source"])
        check_not_empty(report, source.describe(split), split)
        write_manifest(building, identity, dataclasses.asdict(report), ARRAYS)
        publish(building, entry)
    return map_corpus(entry, identity)


def map_corpus(entry: Path, identity: dict) -> TokenizedCorpus:
    """The corpus of a cache entry; raises `OSError`, `ValueError` or the like if it is damaged."""
    arrays, report = load_entry(entry, identity, ARRAYS)
    return TokenizedCorpus(**arrays, report=CorpusReport(**report))


def progress_bar(shown: bool) -> Any:
    from tqdm import tqdm

    return tqdm(
        desc="tokenising", unit=" pairs", unit_scale=True, delay=SHOW_AFTER, disable=not shown
    )


def encode_lines(tokenizer: Any, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of all lines in one [tokens] int64 array, EOS after each, and [lines] lengths.

    Raises:
      InputError: the tokenizer returned a wrong number of lines or an id outside its vocabulary.
    """
    encoded = tokenizer.encode(lines)
    if len(encoded) != len(lines):
        raise InputError(
            f"tokenizer {tokenizer.fingerprint}: {len(encoded)} results for {len(lines)} lines"
        )
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded)) + 1
    ids = np.full(lengths.sum(), tokenizer.eos_id, np.int64)
    is_piece = np.ones(len(ids), bool)
    is_piece[np.cumsum(lengths) - 1] = False
    ids[is_piece] = np.fromiter(itertools.chain.from_iterable(encoded), np.int64)
    if ids.min() < 0 or ids.max() >= tokenizer.vocab_size:
        raise InputError(
            f"tokenizer {tokenizer.fingerprint}: ids from {ids.min()} to {ids.max()} do not fit "
            f"its vocab_size={tokenizer.vocab_size}"
        )
    return ids, lengths


def drop_reasons(
    chunk: list[tuple[str, str]],
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    limits: tuple[int, float],
) -> np.ndarray:
    """[pairs] int: 0 keep, 1 empty side, 2 too long, 3 too unequal; the first reason counts.

    Args:
      chunk: (source, target) texts.
      source_lengths: [pairs] int64 tokens, EOS included.
      target_lengths: [pairs] int64, the same.
      limits: most tokens a side, and the largest ratio of the sides; a ratio of 0: any.

    Returns:
      [pairs] int64.
    """
    max_length, max_ratio = limits
    blank = np.fromiter((not (s.strip() and t.strip()) for s, t in chunk), bool, len(chunk))
    longer = np.maximum(source_lengths, target_lengths)
    shorter = np.minimum(source_lengths, target_lengths)
    reasons = np.zeros(len(chunk), np.int64)
    if max_ratio:
        reasons[longer - 1 > max_ratio * (shorter - 1)] = 3
    reasons[longer > max_length] = 2
    reasons[blank | (shorter == 1)] = 1
    return reasons


def write_arrays(
    directory: Path,
    pairs: Iterator[tuple[str, str]],
    tokenizers: tuple[Any, Any],
    filters: bool,
    limits: tuple[int, float],
    advance: Callable[[int], Any],
) -> CorpusReport:
    """Tokenise and filter pairs chunk by chunk, writing one `.npy` file per array.

    Args:
      directory: where the files go.
      pairs: (source, target) texts.
      tokenizers: of the source and the target.
      filters: drop pairs as `drop_reasons` says; False keeps all.
      limits: as for `drop_reasons`.
      advance: called with the number of pairs of each finished chunk.

    Returns:
      How many pairs were read, kept and dropped.

    Raises:
      InputError: a file cannot be written, or see `encode_lines`.
    """
    dtypes = [np.uint16 if t.vocab_size <= 2**16 else np.int32 for t in tokenizers]
    dtypes += [np.int64] * 3
    counts = np.zeros(4, np.int64)
    ends = [0, 0]
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context(ArrayWriter(directory / f"{name}.npy", dtype))
            for name, dtype in zip(ARRAYS, dtypes, strict=True)
        ]
        for file in files[2:4]:
            file.append(np.zeros(1, np.int64))
        pairs = iter(pairs)
        while chunk := list(itertools.islice(pairs, CHUNK_PAIRS)):
            lines = zip(*chunk, strict=True)
            sides = [encode_lines(t, list(side)) for t, side in zip(tokenizers, lines, strict=True)]
            reasons = np.zeros(len(chunk), np.int64)
            if filters:
                reasons = drop_reasons(chunk, sides[0][1], sides[1][1], limits)
            keep = reasons == 0
            files[4].append(counts.sum() + np.flatnonzero(keep))
            counts += np.bincount(reasons, minlength=4)
            for side, (ids, lengths) in enumerate(sides):
                files[side].append(ids[np.repeat(keep, lengths)])
                offsets = ends[side] + np.cumsum(lengths[keep])
                files[2 + side].append(offsets)
                ends[side] = int(offsets[-1]) if len(offsets) else ends[side]
            advance(len(chunk))
    kept, empty, too_long, ratio = (int(count) for count in counts)
    return CorpusReport(
        read=kept + empty + too_long + ratio,
        kept=kept,
        dropped_empty=empty,
        dropped_too_long=too_long,
        dropped_ratio=ratio,
        max_length=limits[0],
        max_length_ratio=limits[1],
    )


def check_not_empty(report: CorpusReport, description: str, split: str) -> None:
    """Refuse a corpus without pairs.

    Args:
      report: how many pairs were read, kept and dropped.
      description: of the text, for the message.
      split: train, validation or test.

    Raises:
      InputError: no pair was read or kept; names the counts and the field to change.
    """
    if not report.read:
        raise InputError(f"data.{split}: {description} is empty; it must hold sentence pairs")
    if report.kept:
        return
    repairs = {
        "raise data.max_length": report.dropped_too_long,
        "raise data.max_length_ratio, or set it to 0": report.dropped_ratio,
        f"give data.{split} pairs with text on both sides": report.dropped_empty,
    }
    raise InputError(
        f"data.{split}: no pair of {description} is left: {report.summary()}; "
        f"{max(repairs, key=repairs.get)}"
    )
