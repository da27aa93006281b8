"""Parallel text: two files with one sentence per line, or one TSV; plain or .gz; streamed."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

from jaxformer.config import DataConfig
from jaxformer.errors import InputError
from jaxformer.files.descriptors import is_regular
from jaxformer.files.inputs import count_lines, read_chunks, read_lines
from jaxformer.files.user_paths import expand_user

# How the stems of a split begin; conventional names are found without flags.
_PREFIXES = {"train": ("train",), "validation": ("val", "dev"), "test": ("test",)}
_EXACT = {"train": (), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}


def _unequal(source: str | Path, num_source: int, target: str | Path, num_target: int):
    return InputError(
        f"{source} has {num_source:,} lines and {target} has {num_target:,}; line n of one must "
        "translate line n of the other"
    )


def check_parallel(source_path: str | Path, target_path: str | Path) -> int:
    """Return the number of lines that both files have.

    Raises:
      InputError: the counts differ, or a file cannot be read.
    """
    num_source, num_target = count_lines(source_path), count_lines(target_path)
    if num_source != num_target:
        raise _unequal(source_path, num_source, target_path, num_target)
    return num_source


def _read_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    count = 0
    missing = object()
    sides = read_lines(source), read_lines(target)
    for one, other in zip_longest(*sides, fillvalue=missing):
        if one is missing or other is missing:
            longer = count + 1 + sum(1 for _ in sides[one is missing])
            counts = (longer, count) if other is missing else (count, longer)
            raise _unequal(source, counts[0], target, counts[1])
        count += 1
        yield one, other
    if not count:
        raise InputError(f"{source} and {target} are empty; a corpus needs at least one pair")


def _read_tsv(path: Path) -> Iterator[tuple[str, str]]:
    number = ignored = 0
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise InputError(
                f"{path}, line {number}: no tab; a TSV line is source, tab, target: {line[:60]!r}"
            )
        if len(columns) > 2 and not ignored:
            print(
                f"note: {path}, line {number} has {len(columns)} columns; in the whole file the "
                "first is the source, the second the target, and the rest is ignored",
                file=sys.stderr,
            )
            ignored = number
        yield columns[0], columns[1]
    if not number:
        raise InputError(f"{path} is empty; a corpus needs at least one pair")


def fingerprint_files(paths: Iterable[Path]) -> str:
    """Hex digest of the (decompressed) bytes of some files, in order."""
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        one = hashlib.blake2b()
        for chunk in read_chunks(path):
            one.update(chunk)
        digest.update(one.digest())
    return digest.hexdigest()


def _without_gz(name: str) -> str:
    return name.removesuffix(".gz")


class TextSource:
    """Parallel text files in one folder, found by `DataConfig`'s stems and languages.

    `data.train="train"` means `train.en` and `train.fr`, by the languages, their `.gz`, or
    `train.tsv(.gz)`. Without a stem, a file of the folder is used if only one fits: `train*`,
    `val*` or `dev*`, `test*`.

    Raises:
      InputError: the folder or a named file is missing, or more than one stem fits a split.
    """

    def __init__(self, config: DataConfig):
        self._root = expand_user(config.root, "data.root")
        self._languages = (config.source_language, config.target_language)
        if not self._root.is_dir():
            raise InputError(
                f"data.root={config.root!r} is not a folder; set it to the folder of the text files"
            )
        self._stems = self._list_stems()
        self._files: dict[str, tuple[Path, ...]] = {}
        for split, wanted in (
            ("train", config.train),
            ("validation", config.validation),
            ("test", config.test),
        ):
            files = self._find(split, wanted)
            if files:
                self._files[split] = files
        self.splits = tuple(self._files)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream the pairs of `split`; a pair with an empty side is kept.

        Raises:
          InputError: unequal line counts, no lines, not UTF-8, or a TSV line without a tab.
        """
        files = self._split(split)
        return _read_tsv(*files) if len(files) == 1 else _read_pairs(*files)

    def fingerprint(self, split: str) -> str:
        return fingerprint_files(self._split(split))

    def describe(self, split: str) -> str:
        return " and ".join(str(path) for path in self._split(split))

    def _split(self, split: str) -> tuple[Path, ...]:
        if split not in self._files:
            raise InputError(
                f"{self._root} has no {split} text; it has {', '.join(self.splits)}; "
                f"{self._inventory()}"
            )
        return self._files[split]

    def _list_stems(self) -> dict[str, set[str]]:
        """Stem -> suffixes of its files: {"train": {"en", "fr"}, "test": {"tsv"}}."""
        stems: dict[str, set[str]] = {}
        for entry in sorted(os.listdir(self._root)):
            stem, dot, suffix = _without_gz(entry).rpartition(".")
            if dot and stem and (self._root / entry).is_file():
                stems.setdefault(stem, set()).add(suffix)
        return stems

    def _inventory(self) -> str:
        if not self._stems:
            return "the folder holds no text files"
        shown = [f"{s} ({', '.join(sorted(x))})" for s, x in list(self._stems.items())[:12]]
        more = f" and {len(self._stems) - 12} more" if len(self._stems) > 12 else ""
        return f"stems in the folder: {'; '.join(shown)}{more}"

    def _is_complete(self, stem: str) -> bool:
        suffixes = self._stems[stem]
        return "tsv" in suffixes or suffixes.issuperset(self._languages)

    def _find(self, split: str, wanted: str) -> tuple[Path, ...]:
        """Files of a split; () if nothing was named and no file in the folder fits."""
        if wanted and self._exists(wanted):
            return self._resolve(split, wanted)
        if wanted and (split, wanted) != ("train", "train"):
            raise self._missing(split, wanted)
        for stem in _EXACT[split]:
            if self._exists(stem):
                return self._resolve(split, stem)
        fitting = [
            s for s in self._stems if s.startswith(_PREFIXES[split]) and self._is_complete(s)
        ]
        if len(fitting) > 1:
            raise InputError(
                f"{self._root} has {len(fitting)} files for {split}: {', '.join(fitting)}; set "
                f"data.{split} to one of them"
            )
        if not fitting and wanted:
            raise self._missing(split, wanted)
        return self._resolve(split, fitting[0]) if fitting else ()

    def _missing(self, split: str, wanted: str) -> InputError:
        sides = " and ".join(f"{wanted}.{language}" for language in self._languages)
        return InputError(
            f"data.{split}={wanted!r}: neither {sides} nor {wanted.removesuffix('.tsv')}.tsv is in "
            f"{self._root} (plain or .gz); {self._inventory()}"
        )

    def _exists(self, stem: str) -> bool:
        pair, tables = self._candidates(stem)
        return bool(all(pair) or tables)

    def _candidates(self, stem: str) -> tuple[list[list[Path]], list[Path]]:
        def existing(names: Iterable[str]) -> list[Path]:
            return [self._root / name for name in names if (self._root / name).is_file()]

        if _without_gz(stem).endswith(".tsv"):
            return [[], []], existing((stem,) if stem.endswith(".gz") else (stem, f"{stem}.gz"))
        pair = [existing((f"{stem}.{x}", f"{stem}.{x}.gz")) for x in self._languages]
        return pair, existing((f"{stem}.tsv", f"{stem}.tsv.gz"))

    def _resolve(self, split: str, stem: str) -> tuple[Path, ...]:
        pair, tables = self._candidates(stem)
        sides = pair if all(pair) else []
        if len(tables) + bool(sides) > 1 or any(len(side) > 1 for side in sides):
            found = ", ".join(path.name for path in [*sum(sides, []), *tables])
            raise InputError(
                f"data.{split}={stem!r} matches several files in {self._root}: {found}; keep one "
                "of them"
            )
        if sides and self._languages[0] == self._languages[1]:
            raise InputError(
                f"data.source_language and data.target_language are both {self._languages[0]!r}, "
                f"so source and target are the same file, {sides[0][0].name}; set both suffixes"
            )
        return tuple(side[0] for side in sides) or (tables[0],)


class FilePair:
    """A `Source` of two named files, with the single split `test`.

    Pipes, which can be read only once, are read into memory.

    Raises:
      InputError: one of them cannot be read, both are the same pipe, or the line counts differ.
    """

    splits = ("test",)

    def __init__(self, source_path: str | Path, target_path: str | Path):
        self._files = (Path(source_path), Path(target_path))
        self._pairs: list[tuple[str, str]] | None = None
        missing = [path for path in self._files if not path.exists()]
        if missing or all(map(is_regular, self._files)):
            check_parallel(*self._files)
        elif self._files[0].samefile(self._files[1]):
            raise InputError(
                f"{source_path} and {target_path} are the same pipe; use another for the references"
            )
        else:
            self._pairs = list(_read_pairs(*self._files))

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream the pairs of the two files."""
        return iter(self._pairs) if self._pairs is not None else _read_pairs(*self._files)

    def fingerprint(self, split: str) -> str:
        if self._pairs is None:
            return fingerprint_files(self._files)
        return hashlib.blake2b(repr(self._pairs).encode(), digest_size=16).hexdigest()

    def describe(self, split: str) -> str:
        return " and ".join(map(str, self._files))
