"""Translation: sentence pairs, the encoder-decoder Transformer, and how it is measured."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from jaxformer.config import Config
from jaxformer.data.batching import BatchShape, rows_per_batch
from jaxformer.data.corpus import prepare_corpus
from jaxformer.data.dataset import BatchSpec
from jaxformer.data.pair_dataset import PairDataset, pair_spec, plan_batches, plan_summary
from jaxformer.data.sources import Source, make_source
from jaxformer.data.subword_sampling import make_sampler
from jaxformer.data.tokenizer_training import load_or_train
from jaxformer.data.tokenizers import Tokenizer, load_tokenizers, vocabularies_of
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.errors import InputError
from jaxformer.evaluation.bleu import make_bleu
from jaxformer.evaluation.evaluator import HELD_OUT
from jaxformer.evaluation.translations import TranslationEvaluator
from jaxformer.runtime.distributed import is_first_process
from jaxformer.storage.measurement import SelectionMetric
from jaxformer.tasks.task import BatchBudget, Task
from jaxformer.tasks.translation_loss import Translation

PLANNED_IDS = {"pad_id": 0, "bos_id": 2}  # of vocabularies that jaxformer trains
# What a translation of the validation split depends on, besides the model and its vocabulary.
TRANSLATION_SETTINGS = (
    "training.eval_sentences",
    "training.eval_beam_size",  # replaces decoding.beam_size
    "decoding.max_length_factor",
    "decoding.max_length_extra",
    "decoding.max_source_length",
)


def _translation_settings(values: Mapping[str, Any]) -> list[str]:
    names = [*TRANSLATION_SETTINGS, "training.bleu_lowercase"]
    if values["training.eval_beam_size"] > 1:
        names.append("decoding.alpha")
        if values["decoding.alpha"]:
            names.append("decoding.length_penalty")
    return names


class TranslationTask(Task):
    """Trains a `Transformer` on sentence pairs; measured by loss, BLEU and chrF."""

    next_command = "translate"
    selection_metrics = {
        "bleu": SelectionMetric(
            True, lambda values: [*_translation_settings(values), "training.bleu_tokenize"]
        ),
        "chrf": SelectionMetric(True, _translation_settings),  # counts characters, not tokens
        "accuracy": SelectionMetric(True),
        # Of the whole split, without dropout and so without R-Drop.
        "loss": SelectionMetric(False, lambda values: ["training.label_smoothing"]),
    }

    def check(self, config: Config) -> None:
        make_bleu(config.training.bleu_tokenize, name="training.bleu_tokenize")

    def open_data(self, config: Config) -> Source:
        source = make_source(config.data, config.seed)
        source.fingerprint = functools.cache(source.fingerprint)  # reads large texts only once
        for split in ("train", "validation"):
            if split not in source.splits:
                raise InputError(
                    f"the data has no {split} split (data.{split}="
                    f"{getattr(config.data, split)!r}); it has {', '.join(source.splits)}"
                )
        return source

    def settle(self, config: Config, begun: Config | None, platform: str) -> Config:
        """Fill in the existing run's vocabulary sizes, and its or the platform's `batching`."""
        data = config.data.for_platform(platform)
        if config.data.batching == "auto" and begun is not None:
            batching = begun.data.for_platform(platform).batching
            data = dataclasses.replace(data, batching=batching)
        config = dataclasses.replace(config, data=data)
        if begun is None:
            return config
        return _with_sizes(config, begun.model.vocab_size, begun.model.target_vocab_size)

    def make_vocabularies(
        self, config: Config, data: Source, folder: Path
    ) -> tuple[Tokenizer, Tokenizer]:
        source, target = load_or_train(config.tokenizer, data, folder)
        if source.pad_id != target.pad_id:
            raise InputError(
                f"tokenizer.model_file pads with id {source.pad_id}, tokenizer.target_model_file "
                f"with {target.pad_id}; train both with the same pad_id"
            )
        return source, target

    def load_vocabularies(self, folder: Path) -> tuple[Tokenizer, Tokenizer]:
        return load_tokenizers(folder)

    def describe_vocabularies(
        self, vocabularies: tuple[Tokenizer, Tokenizer]
    ) -> Sequence[Vocabulary]:
        return vocabularies_of(vocabularies)

    def with_vocabularies(
        self, config: Config, vocabularies: tuple[Tokenizer, Tokenizer]
    ) -> Config:
        source, target = (tokenizer.vocab_size for tokenizer in vocabularies)
        return _with_sizes(config, source, 0 if config.tokenizer.joint else target)

    def fingerprints(self, data: Source) -> Mapping[str, str]:
        return {split: data.fingerprint(split) for split in ("train", "validation")}

    def objective(
        self, config: Config, vocabularies: tuple[Tokenizer, Tokenizer] | None
    ) -> Translation:
        ids = PLANNED_IDS
        if vocabularies is not None:
            ids = {"pad_id": vocabularies[0].pad_id, "bos_id": vocabularies[1].bos_id}
        return Translation(
            config.model,
            **ids,
            label_smoothing=config.training.label_smoothing,
            r_drop_alpha=config.training.r_drop_alpha,
            chunk_tokens=config.training.loss_chunk_tokens,
        )

    def training_data(
        self,
        config: Config,
        data: Source,
        vocabularies: tuple[Tokenizer, Tokenizer],
        *,
        planned_rows: int,
        row_multiple: int,
    ) -> PairDataset:
        corpus = prepare_corpus(
            data, "train", *vocabularies, config.data, filters=True, progress=is_first_process()
        )
        sampler = make_sampler(corpus, vocabularies, config)
        plan = plan_batches(
            corpus,
            config.data,
            seed=config.seed,
            sampler=sampler,
            planned_rows=planned_rows,
            row_multiple=row_multiple,
        )
        return PairDataset(
            corpus,
            plan,
            vocabularies[0].pad_id,
            packed=config.data.batching == "packed",
            sampler=sampler,
            workers=config.data.workers,
        )

    def evaluator(
        self,
        config: Config,
        objective: Translation,
        data: Source | None,
        vocabularies: tuple[Tokenizer, Tokenizer],
        mesh: Mesh,
        params: dict,
    ) -> TranslationEvaluator:
        return TranslationEvaluator(config, objective, vocabularies, mesh, params, data)

    def check_data(
        self, config: Config, dataset: PairDataset, evaluator: TranslationEvaluator
    ) -> None:
        """Refuse rows of any split that are longer than the table of learned positions.

        Held-out splits are measured after the run, so it is best to refuse them before it.
        """
        limit = config.model.position_limit
        if limit is None:
            return
        held_out = [split for split in ("validation", *HELD_OUT) if split in evaluator.splits]
        datasets = {split: evaluator.load(split).dataset for split in held_out}
        for split, found in ({"train": dataset} | datasets).items():
            longest = max(array.shape[1] for spec in found.specs() for array in spec.values())
            if longest > limit:
                raise InputError(
                    f"model.max_length={limit} learned positions are too few for rows of {longest} "
                    f"tokens (padding included) of data.{split}; raise it to at least {longest}"
                )

    def describe(
        self,
        config: Config,
        data: Source,
        vocabularies: tuple[Tokenizer, Tokenizer],
        dataset: PairDataset,
    ) -> list[str]:
        model, sizes = config.model, [tokenizer.vocab_size for tokenizer in vocabularies]
        vocabulary = (
            f"joint vocabulary of {sizes[0]:,}"
            if config.tokenizer.joint
            else f"vocabularies of {sizes[0]:,} and {sizes[1]:,}"
        )
        summary = plan_summary(dataset.plan, dataset.sampler).splitlines()
        return [
            f"model     {model.num_encoder_layers}+{model.num_decoder_layers} layers, d_model "
            f"{model.d_model}, d_ff {model.d_ff}, {model.num_heads} heads, {model.norm}-norm, "
            f"{model.activation}, {model.positions} positions, {model.dtype}",
            f"data      {data.describe('train')}",
            f"          {dataset.corpus.report.summary()}; {vocabulary}",
            f"batches   {config.data.batching}, {config.data.tokens_per_batch:,} tokens a side",
            *(f"          {line}" for line in summary),
        ]

    def batch_budget(self, config: Config, row_multiple: int, longest: int = 0) -> BatchBudget:
        rows = row_multiple * (longest or config.data.max_length)
        return BatchBudget(
            "data.tokens_per_batch",
            config.data.tokens_per_batch,
            max(rows, config.data.max_length) if longest else rows,
        )

    def planned_config(self, config: Config, platform: str) -> Config:
        pieces = config.tokenizer.vocab_size
        config = _with_sizes(config, pieces, 0 if config.tokenizer.joint else pieces)
        return dataclasses.replace(config, data=config.data.for_platform(platform))

    def planned_spec(
        self, config: Config, length: int, row_multiple: int, *, training: bool = True
    ) -> BatchSpec:
        """Rows of `length` tokens on each side, as many as data.tokens_per_batch holds."""
        budget = config.data.tokens_per_batch
        if not training:
            budget //= config.optimizer.accumulation_steps
        shape = BatchShape(length, length, rows_per_batch(budget, length, row_multiple), 0)
        return pair_spec(shape, packed=config.data.batching == "packed")


def _with_sizes(config: Config, vocab_size: int, target_vocab_size: int) -> Config:
    """The configuration with the model's vocabulary sizes filled in; target 0: shared."""
    model = dataclasses.replace(
        config.model, vocab_size=vocab_size, target_vocab_size=target_vocab_size
    )
    return dataclasses.replace(config, model=model)
