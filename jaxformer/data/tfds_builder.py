"""The built-in corpus as a TFDS dataset: importing this module registers `jaxformer_en_fr`.

TensorFlow is not needed if the data is prepared as array_record and read as a data source:

    builder = tfds.builder("jaxformer_en_fr", data_dir=folder, file_format="array_record")
    builder.download_and_prepare()
    builder.as_data_source(split="test")[0]  # {"en": b"...", "fr": b"..."}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import tensorflow_datasets as tfds

from jaxformer.data.builtin_corpus import SPLITS, generate_corpus


@dataclasses.dataclass(kw_only=True)
class CorpusConfig(tfds.core.BuilderConfig):
    """A size and a seed of the corpus."""

    num_pairs: int = 60_000  # distinct training pairs
    seed: int = 0


class JaxformerEnFr(tfds.core.GeneratorBasedBuilder):
    """English-French sentence pairs that a grammar generates; nothing is downloaded."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First release."}
    BUILDER_CONFIGS = [
        CorpusConfig(name="default", description="60,000 distinct training pairs."),
        CorpusConfig(name="small", description="2,000 distinct training pairs.", num_pairs=2_000),
    ]

    def _info(self) -> tfds.core.DatasetInfo:
        return self.dataset_info_from_configs(
            description=__doc__,
            features=tfds.features.Translation(languages=("en", "fr")),
            supervised_keys=("en", "fr"),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict:
        del dl_manager  # the corpus is generated
        corpus = generate_corpus(self.builder_config.num_pairs, self.builder_config.seed)
        return {split: self._generate_examples(corpus[split]) for split in SPLITS}

    def _generate_examples(
        self, pairs: list[tuple[str, str]]
    ) -> Iterator[tuple[int, dict[str, str]]]:
        for index, (english, french) in enumerate(pairs):
            yield index, {"en": english, "fr": french}
