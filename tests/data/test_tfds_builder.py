"""The corpus through TFDS: prepared as array_record and read back without TensorFlow."""

import sys

import tensorflow_datasets as tfds

from jaxformer.config import DataConfig
from jaxformer.data.builtin_corpus import SPLITS, generate_corpus
from jaxformer.data.sources import make_source
from jaxformer.data.tfds_builder import CorpusConfig, JaxformerEnFr


def test_prepared_dataset_equals_the_generated_corpus(tmp_path):
    config = CorpusConfig(name="tiny", description="For this test.", num_pairs=300, seed=5)
    builder = JaxformerEnFr(data_dir=tmp_path, config=config, file_format="array_record")
    builder.download_and_prepare()
    corpus = generate_corpus(300, 5)
    assert set(builder.info.splits) == set(SPLITS)
    for split in SPLITS:
        rows = builder.as_data_source(split=split)
        read = [(row["en"].decode(), row["fr"].decode()) for row in rows]
        assert sorted(read) == sorted(corpus[split])
    assert "tensorflow" not in sys.modules


def test_importing_the_module_registers_the_builder(tmp_path):
    builder = tfds.builder("jaxformer_en_fr/small", data_dir=tmp_path, file_format="array_record")
    assert isinstance(builder, JaxformerEnFr)
    assert builder.builder_config.num_pairs == 2_000
    assert builder.info.supervised_keys == ("en", "fr")


def test_a_run_finds_it_by_name(tmp_path):
    config = DataConfig(source="tfds", name="jaxformer_en_fr/small", root=str(tmp_path))
    source = make_source(config, seed=0)
    assert source.splits == ("train", "validation", "test")
    assert sorted(source.pairs("test")) == sorted(generate_corpus(2_000, 0)["test"])
