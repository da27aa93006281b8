"""The real builders of TFDS on small archives, laid where TFDS looks for files fetched by hand."""

import io
import shutil
import sys
import tarfile
from types import SimpleNamespace

import pytest

from jaxformer.config import DataConfig
from jaxformer.data import tfds_source
from jaxformer.data.sources import make_source
from jaxformer.errors import InputError

TED = "ted_hrlr_translate/pt_to_en"
WMT = "wmt14_translate/de-en"
TED_FILES = {
    "qi18naacl-dataset.tar.gz": {
        f"datasets/pt_to_en/{language}.{split}": "".join(
            f"{language} {split} {i} \u2028é\n" for i in range(count)
        )
        for language in ("pt", "en")
        for split, count in (("train", 30), ("dev", 4), ("test", 5))
    }
}


def _sgm(language, count):
    lines = [f'<seg id="{i + 1}">{language} test {i}</seg>' for i in range(count)]
    return "<refset>\n" + "\n".join(lines) + "\n</refset>\n"


WMT_FILES = {
    "training-parallel-europarl-v7.tgz": {
        f"training/europarl-v7.de-en.{x}": "".join(f"{x} europarl {i}\n" for i in range(1100))
        for x in ("de", "en")
    },
    "training-parallel-commoncrawl.tgz": {
        f"commoncrawl.de-en.{x}": f"{x} crawl\n\n" for x in ("de", "en")
    },
    "training-parallel-nc-v9.tgz": {
        f"training/news-commentary-v9.de-en.{x}": f"{x} news\n" for x in ("de", "en")
    },
    "dev.tgz": {
        "dev/newstest2013.de": "de dev\n",
        "dev/newstest2013.en": "en dev\n",
        "dev/newstest2014-deen-src.de.sgm": _sgm("de", 3),
        "dev/newstest2014-deen-ref.en.sgm": _sgm("en", 3),
    },
}


def write_archives(folder, archives):
    folder.mkdir(parents=True)
    for name, files in archives.items():
        with tarfile.open(folder / name, "w:gz") as archive:
            for path, text in files.items():
                content = text.encode()
                member = tarfile.TarInfo(path)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def register_checksums(monkeypatch, name, folder):
    """Let the builder expect the small archives of `folder` in place of the published ones."""
    from tensorflow_datasets.core.download import checksums

    infos = type(tfds_source._open_builder(name, str(folder))).url_infos
    for url, info in list(infos.items()):
        if (folder / info.filename).exists():
            monkeypatch.setitem(infos, url, checksums.compute_url_info(folder / info.filename))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A data_dir with both data sets, prepared from their archives without a network."""
    root = tmp_path_factory.mktemp("tfds")
    manual = root / "downloads" / "manual"
    write_archives(manual, {**TED_FILES, **WMT_FILES})
    with pytest.MonkeyPatch.context() as monkeypatch:
        forbid_network(monkeypatch)
        for name in (TED, WMT):
            register_checksums(monkeypatch, name, manual)
            tfds_source.prepare(name, str(root))
    return root


def forbid_network(monkeypatch):
    import requests

    calls = []

    def refuse(self, method, url, **kwargs):
        calls.append(url)
        raise requests.ConnectionError("no network in this test")

    monkeypatch.setattr(requests.Session, "request", refuse)
    return calls


def make(root, name, **fields):
    return make_source(DataConfig(source="tfds", root=str(root), name=name, **fields), seed=0)


def test_ted_hrlr(prepared):
    source = make(prepared, TED, source_language="pt", target_language="en")
    assert source.splits == ("train", "validation", "test")
    assert "tensorflow" not in sys.modules
    for split, name, count in (
        ("train", "train", 30),
        ("validation", "dev", 4),
        ("test", "test", 5),
    ):
        pairs = list(source.pairs(split))
        assert sorted(pairs) == sorted(
            (f"pt {name} {i} \u2028é", f"en {name} {i} \u2028é") for i in range(count)
        )
        assert pairs == list(source.pairs(split))
    assert source.describe("test") == "TFDS ted_hrlr_translate/pt_to_en/1.0.0, split test"


def test_wmt14_in_both_directions(prepared):
    source = make(prepared, WMT, source_language="en", target_language="de")
    train = list(source.pairs("train"))
    assert len(train) == 1102  # the pair of blank lines is left out by TFDS's own builder
    assert {("en europarl 1099", "de europarl 1099"), ("en crawl", "de crawl")} <= set(train)
    assert list(source.pairs("validation")) == [("en dev", "de dev")]
    assert sorted(source.pairs("test")) == [(f"en test {i}", f"de test {i}") for i in range(3)]
    back = make(prepared, WMT, source_language="de", target_language="en")
    assert list(back.pairs("train")) == [(target, source) for source, target in train]
    assert back.fingerprint("train") != source.fingerprint("train")


def test_splits_may_be_slices(prepared):
    fields = {"source_language": "pt", "target_language": "en"}
    source = make(prepared, TED, train="train[:50%]", validation="train[50%:]", **fields)
    pairs = [*source.pairs("train"), *source.pairs("validation")]
    assert len(list(source.pairs("train"))) == 15
    assert pairs == list(make(prepared, TED, **fields).pairs("train"))
    assert source.fingerprint("train") != source.fingerprint("validation")


def test_fingerprint_follows_the_files(prepared):
    source = make(prepared, TED, source_language="pt", target_language="en")
    first = source.fingerprint("train")
    (shard,) = prepared.glob("ted_hrlr_translate/*/*/*train.array_record*")
    content = shard.read_bytes()
    shard.write_bytes(content + b"x")
    changed = source.fingerprint("train")
    shard.write_bytes(content)
    assert changed != first == source.fingerprint("train")


def test_unknown_language_names_those_there(prepared):
    with pytest.raises(InputError, match="data.target_language='fr': .* the languages de, en"):
        make(prepared, WMT)


def test_unknown_split_names_those_there(prepared):
    with pytest.raises(InputError, match="data.test='exam': .* has the splits .*validation"):
        make(prepared, WMT, target_language="de", test="exam")
    with pytest.raises(InputError, match=r"has no compositional split; it has .*train"):
        make(prepared, WMT, target_language="de").pairs("compositional")


def test_unknown_names(tmp_path):
    with pytest.raises(InputError, match="data.name='nosuch_set/x': .*wmt14_translate/de-en"):
        tfds_source.prepare("nosuch_set/x", str(tmp_path))
    with pytest.raises(InputError, match="data.name='wmt14_translate/de-xx': .*de-xx not found"):
        tfds_source.prepare("wmt14_translate/de-xx", str(tmp_path))


def test_without_network_the_missing_files_are_named_at_once(tmp_path, monkeypatch, capsys):
    calls = forbid_network(monkeypatch)
    write_archives(tmp_path / "downloads" / "manual", {"dev.tgz": WMT_FILES["dev.tgz"]})
    with pytest.raises(InputError) as error:
        make(tmp_path, WMT, target_language="de")
    message = str(error.value)
    assert "www.statmt.org cannot be reached (ConnectionError)" in message
    assert f" {tmp_path}/downloads/manual " in message
    assert "training-parallel-europarl-v7.tgz  658 MB  from http://www.statmt.org" in message
    assert "training-parallel-nc-v9.tgz" in message
    assert "commoncrawl.tgz" in message
    assert "dev.tgz" not in message and "wiki-titles" not in message
    assert "prepare('\"'\"'wmt14_translate/de-en'\"'\"', " in message
    assert f"copy DIR/wmt14_translate/de-en to {tmp_path}/wmt14_translate/de-en" in message
    assert len(calls) == 1
    assert "downloading 3 files for wmt14_translate/de-en" in capsys.readouterr().err


def test_another_process_that_prepares_the_same_folder_faster(tmp_path, monkeypatch, capfd):
    from jaxformer.data.tfds_builder import JaxformerEnFr

    prepare_here = JaxformerEnFr._download_and_prepare

    def slowly(self, *args, **kwargs):
        monkeypatch.setattr(JaxformerEnFr, "_download_and_prepare", prepare_here)
        tfds_source.prepare("jaxformer_en_fr/small", str(tmp_path))  # the other process
        prepare_here(self, *args, **kwargs)

    monkeypatch.setattr(JaxformerEnFr, "_download_and_prepare", slowly)
    builder = tfds_source.prepare("jaxformer_en_fr/small", str(tmp_path))
    assert capfd.readouterr().err.count("preparing jaxformer_en_fr/small") == 2
    assert builder.is_prepared() and len(builder.as_data_source(split="train")) > 1000


def test_wrong_archive_is_refused(tmp_path, monkeypatch):
    forbid_network(monkeypatch)
    write_archives(tmp_path / "downloads" / "manual", TED_FILES)
    with pytest.raises(InputError, match="preparing it failed: NonMatchingChecksumError"):
        make(tmp_path, TED, source_language="pt", target_language="en")


def test_extractor_is_left_as_it_was(prepared):
    from tensorflow_datasets.core.download import extractor

    assert not isinstance(extractor.tf, SimpleNamespace)


def test_extractor_that_moved_is_a_clear_error(monkeypatch):
    from tensorflow_datasets.core import download

    monkeypatch.setattr(tfds_source, "find_spec", lambda name: None)
    monkeypatch.delattr(download, "extractor")
    monkeypatch.setitem(sys.modules, "tensorflow_datasets.core.download.extractor", None)
    with pytest.raises(InputError, match="pip install tensorflow-datasets==4.9.10"):
        with tfds_source._extractor_without_tensorflow():
            pass


def test_extractor_that_needs_no_tensorflow_is_left_alone(monkeypatch):
    from tensorflow_datasets.core.download import extractor

    monkeypatch.setattr(tfds_source, "find_spec", lambda name: None)
    monkeypatch.delattr(extractor, "tf")
    with tfds_source._extractor_without_tensorflow():
        assert not hasattr(extractor, "tf")


def test_prepared_folder_can_be_copied(prepared, tmp_path, monkeypatch):
    forbid_network(monkeypatch)
    shutil.copytree(prepared / TED, tmp_path / TED)
    fields = {"source_language": "pt", "target_language": "en"}
    copy, original = make(tmp_path, TED, **fields), make(prepared, TED, **fields)
    assert list(copy.pairs("train")) == list(original.pairs("train"))
    assert copy.fingerprint("train") == original.fingerprint("train")


def test_data_in_another_format_is_refused(prepared, tmp_path):
    folder = tmp_path / TED / "1.0.0"
    folder.mkdir(parents=True)
    for file in (prepared / TED / "1.0.0").iterdir():
        content = file.read_bytes().replace(b"array_record", b"tfrecord")
        (folder / file.name.replace("array_record", "tfrecord")).write_bytes(content)
    with pytest.raises(InputError, match="is stored as tfrecord, which has no random access"):
        make(tmp_path, TED, source_language="pt", target_language="en")
