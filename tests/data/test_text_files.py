import gzip
import os
import tracemalloc

import pytest

from jaxformer.config import DataConfig
from jaxformer.data.text_files import TextSource, check_parallel
from jaxformer.errors import InputError
from jaxformer.files.inputs import count_lines, read_lines


def write(folder, **files):
    """write(folder, train_en=b"...") writes folder/train.en; two underscores stay one."""
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(content) if name.endswith("_gz") else content)


def make(folder, **fields):
    return TextSource(DataConfig(source="text", root=str(folder), **fields))


def train_pairs(folder, **fields):
    return list(make(folder, **fields).pairs("train"))


def test_lines_end_at_lf_only(tmp_path):
    english = "a\u2028b\nc\u0085d\ne\rf\n\x00g\n\x0bh\x0ci\n\n"
    write(tmp_path, train_en=english.encode(), train_fr=b"1\n2\n3\n4\n5\n6\n")
    assert train_pairs(tmp_path) == [
        ("a\u2028b", "1"),
        ("c\u0085d", "2"),
        ("e\rf", "3"),
        ("\x00g", "4"),
        ("\x0bh\x0ci", "5"),
        ("", "6"),
    ]


def test_line_ends_and_byte_order_mark(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\r\r\n \xef\xbb\xbfc \r\nlast")
    assert list(read_lines(path)) == ["a", "b\r", " \ufeffc ", "last"]
    assert count_lines(path) == 4
    path.write_bytes(b"")
    assert list(read_lines(path)) == [] and count_lines(path) == 0
    path.write_bytes(b"\n\n")
    assert list(read_lines(path)) == ["", ""] and count_lines(path) == 2


def test_gz_on_either_side(tmp_path):
    write(tmp_path, train_en_gz=b"one\ntwo\n", train_fr=b"un\ndeux\n")
    assert train_pairs(tmp_path) == [("one", "un"), ("two", "deux")]


def test_damaged_gz(tmp_path):
    content = gzip.compress(os.urandom(5000))
    (tmp_path / "a.gz").write_bytes(content[:3000])
    (tmp_path / "b.gz").write_bytes(b"plain text\n")
    for name in ("a.gz", "b.gz"):
        with pytest.raises(InputError, match=f"{name}.*gzip"):
            count_lines(tmp_path / name)


def test_tsv_ignores_more_columns_with_one_note(tmp_path, capsys):
    write(tmp_path, train_tsv=b"a\tb\nc\td\te\nf\tg\th\n\t\n", valid_tsv_gz=b"x\ty\n")
    source = make(tmp_path)
    assert list(source.pairs("train")) == [("a", "b"), ("c", "d"), ("f", "g"), ("", "")]
    note = capsys.readouterr().err
    assert note.count("note:") == 1 and "line 2 has 3 columns" in note
    assert list(source.pairs("validation")) == [("x", "y")]
    assert train_pairs(tmp_path, train="train.tsv")[0] == ("a", "b")


def test_tsv_with_one_column_names_the_line(tmp_path):
    write(tmp_path, train_tsv=b"a\tb\nno tab here\n")
    with pytest.raises(InputError, match="train.tsv, line 2: no tab.*'no tab here'"):
        train_pairs(tmp_path)


def test_unequal_line_counts_name_both(tmp_path):
    write(tmp_path, train_en=b"1\n2\n3\n4\n", train_fr=b"1\n2\n")
    message = r"train.en has 4 lines and \S*train.fr has 2; line n"
    with pytest.raises(InputError, match=message):
        train_pairs(tmp_path)
    with pytest.raises(InputError, match=message):
        check_parallel(tmp_path / "train.en", tmp_path / "train.fr")
    (tmp_path / "train.fr").write_bytes(b"1\n2\n3\n4")
    assert check_parallel(tmp_path / "train.en", tmp_path / "train.fr") == 4


def test_invalid_utf8_names_file_line_and_byte(tmp_path):
    write(tmp_path, train_en=b"ok\n", train_fr=b"caf\xe9\n")
    with pytest.raises(InputError, match="train.fr, line 1: not UTF-8: byte 0xE9 at offset 3"):
        train_pairs(tmp_path)


def test_empty_corpus(tmp_path):
    write(tmp_path, train_en=b"", train_fr=b"", test_tsv=b"")
    source = make(tmp_path)
    with pytest.raises(InputError, match="train.en and .*train.fr are empty"):
        list(source.pairs("train"))
    with pytest.raises(InputError, match="test.tsv is empty"):
        list(source.pairs("test"))


def test_pair_with_an_empty_side_is_kept(tmp_path):
    write(tmp_path, train_en=b"\nb\n", train_fr=b"a\n\n")
    assert train_pairs(tmp_path) == [("", "a"), ("b", "")]


def test_missing_root(tmp_path):
    with pytest.raises(InputError, match="data.root='.*/nowhere' is not a folder"):
        make(tmp_path / "nowhere")


def test_missing_file_names_what_was_looked_for_and_what_is_there(tmp_path):
    write(tmp_path, corpus_en=b"a\n", corpus_de=b"b\n")
    with pytest.raises(InputError) as error:
        make(tmp_path, train="corpus")
    message = str(error.value)
    assert "data.train='corpus': neither corpus.en and corpus.fr nor corpus.tsv" in message
    assert "stems in the folder: corpus (de, en)" in message
    with pytest.raises(InputError, match="data.test='foo': neither foo.en and foo.de"):
        make(tmp_path, train="corpus", target_language="de", test="foo")


def test_missing_line_file(tmp_path):
    with pytest.raises(InputError, match="nothing.txt: no such file"):
        list(read_lines(tmp_path / "nothing.txt"))
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        list(read_lines(tmp_path))


def test_validation_names_in_their_order(tmp_path):
    write(tmp_path, train_tsv=b"a\tb\n", val_tsv=b"c\td\n", dev_tsv=b"e\tf\n")
    assert make(tmp_path).describe("validation").endswith("/val.tsv")
    write(tmp_path, validation_tsv=b"g\th\n")
    assert make(tmp_path).describe("validation").endswith("/validation.tsv")
    assert make(tmp_path, validation="dev").describe("validation").endswith("/dev.tsv")


def test_several_fitting_stems_are_listed(tmp_path):
    for stem in ("train", "test_2016", "test_2017"):
        (tmp_path / f"{stem}.en").write_bytes(b"a\n")
        (tmp_path / f"{stem}.fr").write_bytes(b"b\n")
    with pytest.raises(InputError, match="2 files for test: test_2016, test_2017; set data.test"):
        make(tmp_path)
    assert make(tmp_path, test="test_2017").splits == ("train", "test")


def test_two_forms_of_one_stem_are_refused(tmp_path):
    write(tmp_path, train_en=b"a\n", train_en_gz=b"b\n", train_fr=b"c\n")
    with pytest.raises(InputError, match="data.train='train' .*: train.en, train.en.gz, train.fr"):
        make(tmp_path)


def test_same_language_twice_is_refused_for_files_but_not_for_tsv(tmp_path):
    write(tmp_path, train_en=b"a\n")
    with pytest.raises(InputError, match="both 'en', so source and target are the same file"):
        make(tmp_path, target_language="en")
    (tmp_path / "train.en").unlink()
    write(tmp_path, train_tsv=b"a\tb\n")
    assert train_pairs(tmp_path, target_language="en") == [("a", "b")]


def test_absent_split_names_those_there(tmp_path):
    write(tmp_path, train_tsv=b"a\tb\n")
    source = make(tmp_path)
    assert source.splits == ("train",)
    with pytest.raises(InputError, match="has no test text; it has train; stems in the folder"):
        source.pairs("test")


def test_fingerprint_follows_the_text(tmp_path):
    write(tmp_path, train_en=b"a\nb\n", train_fr=b"c\n")
    first = make(tmp_path).fingerprint("train")
    assert first == make(tmp_path).fingerprint("train")
    write(tmp_path, train_en=b"a\n", train_fr=b"b\nc\n")
    second = make(tmp_path).fingerprint("train")
    swapped = make(tmp_path, source_language="fr", target_language="en").fingerprint("train")
    assert len({first, second, swapped}) == 3


def test_folder_of_multi30k_needs_no_stems(real_data):
    root = real_data / "multi30k"
    tok = make(root / "tok", target_language="de")
    assert tok.splits == ("train", "validation", "test")
    assert tok.describe("test").endswith("/test_2016_flickr.lc.norm.tok.de")
    counts = [sum(1 for _ in tok.pairs(split)) for split in tok.splits]
    assert counts == [29_000, 1_014, 1_000]
    raw = make(root)
    assert raw.describe("validation").endswith("/val.fr")
    assert next(raw.pairs("test")) == (
        "A man in an orange hat starring at something.",
        "Un homme avec un chapeau orange regardant quelque chose.",
    )


def test_memory_does_not_grow_with_the_file(tmp_path):
    write(tmp_path, train_en=b"some words\n" * 400_000, train_fr=b"des mots\n" * 400_000)
    source = make(tmp_path)
    tracemalloc.start()
    count = sum(1 for _ in source.pairs("train"))
    source.fingerprint("train")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 400_000
    assert peak < 4_000_000  # the files hold 8 MB
