"""Where sentence pairs come from: one `Source` for each value of `data.source`.

A new kind of corpus is a class with the four members of `Source` and a line in `SOURCES`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Protocol

from jaxformer.config import DataConfig
from jaxformer.errors import InputError

SPLITS = ("train", "validation", "test", "compositional")


class Source(Protocol):
    """Sentence pairs of a corpus, by split; a missing split raises `InputError`."""

    splits: tuple[str, ...]  # those of SPLITS that exist

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream (source, target) sentences in the order of the corpus."""
        ...

    def fingerprint(self, split: str) -> str:
        """Hex digest that changes whenever the text of the split changes."""
        ...

    def describe(self, split: str) -> str:
        """Where the text of the split comes from, for messages."""
        ...


class BuiltinSource:
    """The generated English-French corpus, in either direction; needs no file and no network.

    Args:
      config: uses `num_pairs`, `source_language` and `target_language`.
      seed: of the generated sentences.

    Raises:
      InputError: the languages are not English and French.
    """

    splits = SPLITS

    def __init__(self, config: DataConfig, seed: int):
        languages = (config.source_language, config.target_language)
        if set(languages) != {"en", "fr"}:
            raise InputError(
                f"data.source_language={languages[0]!r}, data.target_language={languages[1]!r}: "
                "data.source='builtin' is English-French; use en and fr in either order, or "
                "data.source='text' or 'tfds' for other languages"
            )
        self._reverse = languages == ("fr", "en")
        self._languages = languages
        self._num_pairs = config.num_pairs
        self._seed = seed
        self._corpus: dict[str, list[tuple[str, str]]] | None = None

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        pairs = self._split(split)
        return ((pair[1], pair[0]) for pair in pairs) if self._reverse else iter(pairs)

    def fingerprint(self, split: str) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for pair in self.pairs(split):
            digest.update("\t".join(pair).encode() + b"\n")
        return digest.hexdigest()

    def describe(self, split: str) -> str:
        count = len(self._split(split))
        direction = "-".join(self._languages)
        return f"built-in {direction} corpus, {split}: {count:,} pairs, seed {self._seed}"

    def _split(self, split: str) -> list[tuple[str, str]]:
        if split not in self.splits:
            raise InputError(
                f"the built-in corpus has no {split!r}; it has {', '.join(self.splits)}"
            )
        if self._corpus is None:
            from jaxformer.data.builtin_corpus import generate_corpus

            self._corpus = generate_corpus(self._num_pairs, self._seed)
        return self._corpus[split]


def _text_source(config: DataConfig, seed: int) -> Source:
    from jaxformer.data.text_files import TextSource

    return TextSource(config)


def _tfds_source(config: DataConfig, seed: int) -> Source:
    from jaxformer.data.tfds_source import TfdsSource

    return TfdsSource(config)


SOURCES: dict[str, Callable[[DataConfig, int], Source]] = {
    "builtin": BuiltinSource,
    "text": _text_source,
    "tfds": _tfds_source,
}


def make_source(config: DataConfig, seed: int) -> Source:
    """The source that `config.source` names.

    Args:
      config: see `DataConfig`.
      seed: of the built-in corpus; the others ignore it.

    Raises:
      InputError: files, languages or splits that `config` names do not exist.
    """
    return SOURCES[config.source](config, seed)
