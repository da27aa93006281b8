import sys
from types import ModuleType

import pytest

from jaxformer.config import DataConfig
from jaxformer.data.sources import SOURCES, make_source
from jaxformer.data.text_files import TextSource
from jaxformer.errors import InputError


@pytest.fixture
def generated(monkeypatch):
    """A stand-in for the generator, so that these tests need no particular corpus."""
    calls = []

    def generate_corpus(num_pairs, seed):
        calls.append((num_pairs, seed))
        return {
            "train": [(f"a {seed}", "un"), ("two", "deux")],
            "validation": [("three", "trois")],
            "test": [("four", "quatre")],
            "compositional": [("five", "cinq")],
        }

    module = ModuleType("jaxformer.data.builtin_corpus")
    module.generate_corpus = generate_corpus
    monkeypatch.setitem(sys.modules, "jaxformer.data.builtin_corpus", module)
    return calls


def test_sources_are_the_values_of_data_source():
    assert set(SOURCES) == {"builtin", "text", "tfds"}


def test_builtin_pairs_and_splits(generated):
    source = make_source(DataConfig(num_pairs=200), seed=7)
    assert source.splits == ("train", "validation", "test", "compositional")
    assert list(source.pairs("train")) == [("a 7", "un"), ("two", "deux")]
    assert list(source.pairs("compositional")) == [("five", "cinq")]
    assert generated == [(200, 7)]
    assert source.describe("train") == "built-in en-fr corpus, train: 2 pairs, seed 7"


def test_builtin_can_be_reversed(generated):
    config = DataConfig(source_language="fr", target_language="en")
    source = make_source(config, seed=0)
    assert list(source.pairs("test")) == [("quatre", "four")]
    assert source.fingerprint("test") != make_source(DataConfig(), 0).fingerprint("test")


def test_builtin_fingerprint_follows_the_text(generated):
    first, second = make_source(DataConfig(), 1), make_source(DataConfig(), 2)
    assert first.fingerprint("train") != second.fingerprint("train")
    assert first.fingerprint("test") == second.fingerprint("test")


def test_builtin_refuses_other_languages(generated):
    with pytest.raises(InputError, match="data.target_language='de'.*use en and fr"):
        make_source(DataConfig(target_language="de"), seed=0)


def test_builtin_unknown_split_names_those_there(generated):
    source = make_source(DataConfig(), seed=0)
    with pytest.raises(InputError, match="no 'dev'; it has train, validation, test, compositional"):
        source.pairs("dev")


def test_text_is_made_from_the_folder(tmp_path):
    (tmp_path / "train.en").write_bytes(b"one\n")
    (tmp_path / "train.fr").write_bytes(b"un\n")
    source = make_source(DataConfig(source="text", root=str(tmp_path)), seed=0)
    assert isinstance(source, TextSource)
    assert list(source.pairs("train")) == [("one", "un")]
