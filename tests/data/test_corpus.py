"""Tokenising once, filtering with counts, and a cache that is reused, rekeyed and repaired."""

import os
import warnings

import numpy as np
import pytest

from jaxformer.config import DataConfig
from jaxformer.data import corpus as corpus_module
from jaxformer.data.corpus import CorpusReport, SentenceLengths, cache_directory, prepare_corpus
from jaxformer.errors import InputError

PAIRS = [
    ("a b c", "x y"),
    ("", "x"),
    ("a", "x y z w v u"),
    ("a b c d e f g h i", "x"),
    ("  ", "x"),
    ("b a", "y y"),
]


class WordTokenizer:
    """One id a word, in order of the alphabet of single letters, after the four special ids."""

    pad_id, eos_id, bos_id, unk_id = 0, 1, 2, 3

    def __init__(self, vocab_size=40, fingerprint="words"):
        self.vocab_size, self.fingerprint, self.calls = vocab_size, fingerprint, 0

    def encode(self, lines):
        self.calls += 1
        return [[4 + ord(word[0]) - ord("a") for word in line.split()] for line in lines]


class ListSource:
    def __init__(self, pairs, fingerprint="list"):
        self._pairs, self._fingerprint = pairs, fingerprint

    def pairs(self, split):
        return iter(self._pairs)

    def fingerprint(self, split):
        return f"{self._fingerprint}-{split}"

    def describe(self, split):
        return f"the {split} list"


def prepare(tmp_path, pairs=PAIRS, *, tokenizer=None, filters=True, fingerprint="list", **changes):
    tokenizer = tokenizer or WordTokenizer()
    config = DataConfig(cache_dir=str(tmp_path), **changes)
    source = ListSource(pairs, fingerprint)
    return prepare_corpus(
        source, "train", tokenizer, tokenizer, config, filters=filters, progress=False
    )


def test_sentences_end_in_eos_and_carry_no_bos(tmp_path):
    corpus = prepare(tmp_path, filters=False)
    assert len(corpus) == 6
    source, target = corpus.pair(0)
    assert source.tolist() == [4, 5, 6, 1]
    assert target.tolist() == [27, 28, 1]
    assert corpus.pair(1)[0].tolist() == [1]
    assert corpus.source_lengths.tolist() == [4, 1, 2, 10, 1, 3]
    assert corpus.target_lengths.tolist() == [3, 2, 7, 2, 2, 3]
    assert corpus.source_lengths.dtype == np.int32
    assert corpus.original_index.tolist() == [0, 1, 2, 3, 4, 5]
    assert isinstance(corpus.source_ids, np.memmap)


def test_filters_are_counted_once_each_and_keep_line_numbers(tmp_path):
    corpus = prepare(tmp_path, max_length=8, max_length_ratio=5.0)
    assert corpus.original_index.tolist() == [0, 5]
    assert corpus.pair(1)[0].tolist() == [5, 4, 1]
    assert corpus.report == CorpusReport(
        read=6, kept=2, dropped_empty=2, dropped_too_long=1, dropped_ratio=1,
        max_length=8, max_length_ratio=5.0,
    )  # fmt: skip
    assert corpus.report.summary() == (
        "6 pairs read, 2 kept; dropped: 2 empty, 1 over data.max_length=8, "
        "1 over data.max_length_ratio=5"
    )


def test_limits_are_inclusive(tmp_path):
    kept = prepare(tmp_path, max_length=10, max_length_ratio=9.0).original_index.tolist()
    assert kept == [0, 2, 3, 5]


def test_summary_without_drops(tmp_path):
    assert CorpusReport(read=29_000, kept=29_000).summary() == "29,000 pairs read, 29,000 kept"


def test_chunks_join_without_a_seam(tmp_path, monkeypatch):
    pairs = [("a " * (1 + n % 5), "b " * (1 + n % 3)) for n in range(50)] + [("", "a")] * 9
    whole = prepare(tmp_path / "whole", pairs)
    monkeypatch.setattr(corpus_module, "CHUNK_PAIRS", 7)
    tokenizer = WordTokenizer()
    cut = prepare(tmp_path / "cut", pairs, tokenizer=tokenizer)
    assert tokenizer.calls == 2 * 9
    for name in corpus_module.ARRAYS:
        np.testing.assert_array_equal(getattr(whole, name), getattr(cut, name))
    assert whole.report == cut.report and whole.report.dropped_empty == 9


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, np.uint16), (65_537, np.int32)])
def test_ids_are_stored_as_narrow_as_the_vocabulary_allows(tmp_path, vocab_size, dtype):
    corpus = prepare(tmp_path, tokenizer=WordTokenizer(vocab_size))
    assert corpus.source_ids.dtype == dtype
    assert corpus.source_offsets.dtype == np.int64


def test_second_call_reads_the_cache(tmp_path):
    tokenizer = WordTokenizer()
    first = prepare(tmp_path, tokenizer=tokenizer)
    calls = tokenizer.calls
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = prepare(tmp_path, tokenizer=tokenizer)
    assert calls == 2 and tokenizer.calls == calls
    np.testing.assert_array_equal(first.target_ids, second.target_ids)
    assert second.report == first.report
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": "other text"},
        {"tokenizer": WordTokenizer(fingerprint="other words")},
        {"tokenizer": WordTokenizer(vocab_size=41)},
        {"filters": False},
        {"max_length": 9},
        {"max_length_ratio": 8.0},
    ],
)
def test_key_changes_with_everything_that_matters(tmp_path, change):
    prepare(tmp_path)
    prepare(tmp_path, **change)
    assert len(list(tmp_path.iterdir())) == 2


def test_unfiltered_key_ignores_the_limits(tmp_path):
    prepare(tmp_path, filters=False)
    prepare(tmp_path, filters=False, max_length=9)
    assert len(list(tmp_path.iterdir())) == 1


def flip_a_bit(entry):
    path = entry / "target_ids.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut_short(entry):
    path = entry / "source_ids.npy"
    path.write_bytes(path.read_bytes()[:-2])


def lose_an_array(entry):
    (entry / "source_offsets.npy").unlink()


def lose_the_manifest(entry):
    (entry / "manifest.json").unlink()


def spoil_the_manifest(entry):
    (entry / "manifest.json").write_text("[1, 2")


@pytest.mark.parametrize(
    "damage", [flip_a_bit, cut_short, lose_an_array, lose_the_manifest, spoil_the_manifest]
)
def test_damaged_entry_is_rebuilt_with_a_warning(tmp_path, damage):
    tokenizer = WordTokenizer()
    expected = np.array(prepare(tmp_path, tokenizer=tokenizer).target_ids)
    (entry,) = tmp_path.iterdir()
    damage(entry)
    with pytest.warns(UserWarning, match="damaged"):
        again = prepare(tmp_path, tokenizer=tokenizer)
    assert tokenizer.calls == 4
    np.testing.assert_array_equal(again.target_ids, expected)
    assert list(tmp_path.iterdir()) == [entry]


def test_a_process_that_comes_second_uses_the_first_ones_entry(tmp_path):
    class Overtaken(WordTokenizer):
        def encode(self, lines):
            if not self.calls:  # another process finishes while this one is still tokenising
                prepare(tmp_path, tokenizer=WordTokenizer())
                (entry,) = (p for p in tmp_path.iterdir() if p.suffix != ".tmp")
                self.first = (entry, (entry / "manifest.json").stat().st_ino)
            return super().encode(lines)

    tokenizer = Overtaken()
    corpus = prepare(tmp_path, tokenizer=tokenizer)
    entry, inode = tokenizer.first
    assert corpus.original_index.tolist() == [0, 2, 3, 5]
    assert (entry / "manifest.json").stat().st_ino == inode
    assert list(tmp_path.iterdir()) == [entry]


def test_nothing_is_left_behind_by_a_failure(tmp_path):
    class Broken(WordTokenizer):
        def encode(self, lines):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        prepare(tmp_path, tokenizer=Broken())
    assert list(tmp_path.iterdir()) == []


def test_empty_corpus_is_refused(tmp_path):
    with pytest.raises(InputError, match="data.train: the train list is empty"):
        prepare(tmp_path, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("pairs", "changes", "message"),
    [
        (
            [("a b", "c d"), ("a b c", "d"), ("", "a")],
            {"max_length": 2},
            "3 pairs read, 0 kept; dropped: 1 empty, 2 over data.max_length=2; "
            "raise data.max_length$",
        ),
        (
            [("a b c", "d")],
            {"max_length_ratio": 2.0},
            "1 over data.max_length_ratio=2; raise data.max_length_ratio, or set it to 0$",
        ),
        ([("", "d")], {}, "1 empty; give data.train pairs with text on both sides$"),
    ],
)
def test_a_corpus_with_nothing_left_names_the_field(tmp_path, pairs, changes, message):
    with pytest.raises(InputError, match=message):
        prepare(tmp_path, pairs, **changes)


def test_a_tokenizer_that_loses_lines_or_invents_ids_is_refused(tmp_path):
    class Lossy(WordTokenizer):
        def encode(self, lines):
            return super().encode(lines)[1:]

    with pytest.raises(InputError, match="5 results for 6 lines"):
        prepare(tmp_path, tokenizer=Lossy())
    with pytest.raises(InputError, match="ids from 1 to 29 do not fit its vocab_size=20"):
        prepare(tmp_path, tokenizer=WordTokenizer(vocab_size=20))


def test_cache_directory_follows_config_then_environment_then_home(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path / "env"))
    assert cache_directory(DataConfig(cache_dir="/somewhere")).as_posix() == "/somewhere"
    assert cache_directory(DataConfig()) == tmp_path / "env"
    monkeypatch.delenv("JAXFORMER_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory(DataConfig()) == tmp_path / ".cache" / "jaxformer"


def test_a_cache_that_cannot_be_written_names_the_field(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"data\.cache_dir: cannot write .*JAXFORMER_CACHE"):
        prepare(tmp_path / "file")


def test_quick_work_shows_no_progress_bar(tmp_path, capfd):
    tokenizer = WordTokenizer()
    config = DataConfig(cache_dir=os.fspath(tmp_path))
    prepare_corpus(
        ListSource(PAIRS), "train", tokenizer, tokenizer, config, filters=True, progress=True
    )
    assert capfd.readouterr() == ("", "")


def test_slow_work_shows_a_progress_bar_on_stderr(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(corpus_module, "SHOW_AFTER", 0.0)
    tokenizer = WordTokenizer()
    config = DataConfig(cache_dir=os.fspath(tmp_path))
    prepare_corpus(
        ListSource(PAIRS), "train", tokenizer, tokenizer, config, filters=True, progress=True
    )
    out, err = capfd.readouterr()
    assert out == "" and "tokenising: 6.00 pairs" in err


def test_lengths_are_read_slice_by_slice():
    offsets = np.array([0, 4, 5, 7, 17], np.int64)
    lengths = SentenceLengths(offsets)
    assert len(lengths) == 4
    assert lengths[:].tolist() == [4, 1, 2, 10] and lengths[:].dtype == np.int32
    assert lengths[1:3].tolist() == [1, 2]
    assert lengths[3:9].tolist() == [10]
    assert lengths[4:4].tolist() == lengths[3:1].tolist() == []
    assert SentenceLengths(offsets, lambda stored: stored * 2)[2:4].tolist() == [4, 20]
