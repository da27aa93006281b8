"""The cache folder: arrays that grow on disk, entries that are whole, nothing stale left."""

import fcntl
import functools
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from jaxformer.config import DataConfig
from jaxformer.data.corpus import ARRAYS, prepare_corpus
from jaxformer.data.corpus_cache import ArrayWriter, building_folder, remove_stale
from jaxformer.data.text_files import TextSource
from jaxformer.errors import InputError


class SevenWords:
    """A corpus of `count` times the same pair."""

    def __init__(self, count):
        self._count = count

    def pairs(self, split):
        return (("a b c d", "x y z") for _ in range(self._count))

    def fingerprint(self, split):
        return f"{self._count}"

    def describe(self, split):
        return "seven words"


class WordTokenizer:
    vocab_size, eos_id, fingerprint = 20, 1, "words"

    def encode(self, lines):
        return [[4 + len(word) for word in line.split()] for line in lines]


def prepare(folder, count):
    tokenizer, config = WordTokenizer(), DataConfig(cache_dir=str(folder))
    return prepare_corpus(
        SevenWords(count), "train", tokenizer, tokenizer, config, filters=True, progress=False
    )


def test_array_writer_leaves_what_numpy_saves(tmp_path):
    values = np.arange(100_000) % 60_000
    with ArrayWriter(tmp_path / "grown.npy", np.uint16) as file:
        for start in range(0, len(values), 7000):
            file.append(values[start : start + 7000])
    np.save(tmp_path / "saved.npy", values.astype(np.uint16))
    assert (tmp_path / "grown.npy").read_bytes() == (tmp_path / "saved.npy").read_bytes()


def test_a_full_disk_names_the_field():
    with pytest.raises(InputError, match=r"data\.cache_dir: cannot write /dev/full: No space left"):
        with ArrayWriter(Path("/dev/full"), np.int64) as file:
            file.append(np.zeros(1 << 16, np.int64))


def test_writing_needs_no_more_memory_for_ten_times_the_pairs(tmp_path):
    peaks = []
    for count in (9000, 90_000):
        tracemalloc.start()
        corpus = prepare(tmp_path, count)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(corpus) == count
    assert peaks[1] < 1.2 * peaks[0]


KILLED = """
import os, sys
from pathlib import Path
from jaxformer.data.corpus_cache import building_folder
with building_folder(Path(sys.argv[1]) / ("0" * 32)) as building:
    (building / "source_ids.npy").write_bytes(b"half")
    print(building.name, flush=True)
    sys.stdin.read()
    os._exit(9)
"""


def test_next_run_removes_what_a_killed_one_left_but_not_what_is_being_written(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    other = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **other) as process:
        building = tmp_path / process.stdout.readline().strip()
        prepare(tmp_path, 3)
        assert (building / "source_ids.npy").read_bytes() == b"half"
        process.communicate()
    assert process.returncode == 9 and building.exists()
    unrelated = tmp_path / "mine.tmp"
    unrelated.mkdir()
    prepare(tmp_path, 3)
    assert not building.exists() and unrelated.exists()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_writer_that_lost_its_folder_takes_another(tmp_path, monkeypatch):
    names = [f"{digit * 32}.7.{'a' * 8}.tmp" for digit in "123"]
    left = iter(names)
    monkeypatch.setattr(
        "jaxformer.data.corpus_cache.temporary_sibling", lambda entry: tmp_path / next(left)
    )
    flock, taken = fcntl.flock, []

    def slow_flock(descriptor, operation):
        if not taken:  # another process comes between the folder and its lock
            taken.append(descriptor)
            remove_stale(tmp_path)
        flock(descriptor, operation)

    monkeypatch.setattr("fcntl.flock", slow_flock)
    with building_folder(tmp_path / "entry") as building:
        assert building.name == names[1]
        assert sorted(path.name for path in tmp_path.iterdir()) == [names[1]]
        remove_stale(tmp_path)
        assert building.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_published_entry_holds_the_arrays_and_the_manifest_only(tmp_path):
    prepare(tmp_path, 3)
    (entry,) = tmp_path.iterdir()
    names = [f"{name}.npy" for name in ARRAYS]
    assert sorted(path.name for path in entry.iterdir()) == sorted([*names, "manifest.json"])


LINES = {"before": ("a b\nc d\n", "x\ny\n"), "after": ("a b\nc dd\n", "x\ny\n")}


def write_text(folder, version):
    """`train.en` and `train.fr` of one of `LINES`."""
    for language, text in zip(("en", "fr"), LINES[version], strict=True):
        (folder / f"train.{language}").write_text(text)


class Rewritten(WordTokenizer):
    """The text in `folder` is another one before, or after, its lines are tokenised."""

    def __init__(self, folder, moment):
        self._folder, self._moment = folder, moment

    def encode(self, lines):
        ids = super().encode(lines)
        if self._moment == "while it is read":
            write_text(self._folder, "after")
        return ids


@pytest.mark.parametrize("moment", ["before it is read", "while it is read"])
def test_a_text_that_changes_is_not_kept_under_the_key_of_the_old_one(tmp_path, moment):
    text, cache = tmp_path / "text", tmp_path / "cache"
    text.mkdir()
    write_text(text, "before")
    config = DataConfig(source="text", root=str(text), cache_dir=str(cache))
    source = TextSource(config)
    source.fingerprint = functools.cache(source.fingerprint)  # as a run does with large texts
    source.fingerprint("train")
    if moment == "before it is read":
        write_text(text, "after")
    tokenizer = Rewritten(text, moment)
    settings = {"filters": True, "progress": False}
    with pytest.raises(InputError) as refused:
        prepare_corpus(source, "train", tokenizer, tokenizer, config, **settings)
    message = str(refused.value)
    assert "data.train" in message and "start again" in message
    assert all(str(text / name) in message for name in ("train.en", "train.fr"))
    assert list(cache.iterdir()) == []
    again = WordTokenizer()
    corpus = prepare_corpus(TextSource(config), "train", again, again, config, **settings)
    assert corpus.source_ids.tolist() == [5, 5, 1, 5, 6, 1]
    write_text(text, "before")
    corpus = prepare_corpus(TextSource(config), "train", again, again, config, **settings)
    assert corpus.source_ids.tolist() == [5, 5, 1, 5, 5, 1]
