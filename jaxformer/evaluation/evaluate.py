"""Measure a model: loss on a tokenised corpus, BLEU and chrF of real translations."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh

from jaxformer.config import Config, DecodingConfig
from jaxformer.data.batching import Plan
from jaxformer.data.corpus import TokenizedCorpus, prepare_corpus
from jaxformer.data.loader import make_plan, make_share
from jaxformer.data.sources import Source
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.decoding.translator import Translator
from jaxformer.evaluation.bleu import CorpusScores, corpus_scores
from jaxformer.parallel.mesh import batch_parts, batch_share
from jaxformer.parallel.sharding import (
    batch_sharding,
    parameter_shardings,
    replicated,
    shard_batch,
)
from jaxformer.runtime.distributed import first_process_first, is_first_process
from jaxformer.tasks.translation import Translation


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Figures of one corpus.

    Attributes:
      loss: label-smoothed cross-entropy, nats a target token.
      perplexity: `exp` of the unsmoothed cross-entropy.
      accuracy: share of target tokens predicted right, given those before.
      scores: BLEU and chrF with their signatures.
      hypotheses: the translations.
      seconds: of translating.
    """

    loss: float
    perplexity: float
    accuracy: float
    scores: CorpusScores
    hypotheses: list[str]
    seconds: float

    @property
    def sentences(self) -> int:
        return len(self.hypotheses)

    def metrics(self) -> dict[str, float]:
        """The numbers, by the names that configs and metrics.jsonl use."""
        return {
            "loss": self.loss,
            "perplexity": self.perplexity,
            "accuracy": self.accuracy,
            "bleu": self.scores.bleu,
            "chrf": self.scores.chrf,
        }


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """A split of a source, ready to be measured on: every pair, in order.

    Attributes:
      pairs: (source, reference).
      corpus: the same, tokenised without filters.
      plan: over `corpus`, not shuffled.
    """

    pairs: list[tuple[str, str]]
    corpus: TokenizedCorpus
    plan: Plan


def summarize(sums: dict[str, float]) -> dict[str, float]:
    """Means over target tokens of sums of `Translation.loss_sums`.

    Returns:
      `loss` (smoothed, nats a token), `perplexity` (`exp` of the unsmoothed loss), `accuracy`.
    """
    tokens = max(sums["tokens"], 1.0)
    return {
        "loss": sums["loss"] / tokens,
        "perplexity": math.exp(min(sums["nll"] / tokens, 700.0)),
        "accuracy": sums["correct"] / tokens,
    }


class Evaluator:
    """Measures parameters of one model, in training and in `python -m jaxformer evaluate` alike.

    Args:
      config: of the run, vocabulary sizes filled in.
      task: holds the model.
      tokenizers: source and target.
      mesh: on which to compute.
      params: shapes and dtypes of the parameters.
    """

    def __init__(
        self,
        config: Config,
        task: Translation,
        tokenizers: tuple[Tokenizer, Tokenizer],
        mesh: Mesh,
        params: dict,
    ):
        self.config = config
        self.task = task
        self.tokenizers = tokenizers
        self.mesh = mesh
        smoothing = config.training.label_smoothing
        self.eval_step = jax.jit(
            lambda params, batch: task.loss_sums(
                params, batch, label_smoothing=smoothing, mesh=mesh
            ),
            in_shardings=(parameter_shardings(params, mesh), batch_sharding(mesh)),
            out_shardings=replicated(mesh),
        )

    def load(self, source: Source, split: str) -> EvaluationSet:
        """Tokenise and plan a split of a source."""
        config, parts = self.config, batch_parts(self.mesh)
        with first_process_first():
            corpus = prepare_corpus(
                source,
                split,
                *self.tokenizers,
                config.data,
                filters=False,
                progress=is_first_process(),
            )
        longest = int(max(corpus.source_lengths.max(), corpus.target_lengths.max()))
        tokens = config.data.tokens_per_batch // config.optimizer.accumulation_steps
        data = dataclasses.replace(
            config.data,
            num_buckets=min(config.data.num_buckets, 3),
            tokens_per_batch=max(tokens, parts * (longest + 8), config.data.max_length),
        )
        plan = make_plan(corpus, data, seed=0, row_multiple=parts, shuffle=False)
        return EvaluationSet(list(source.pairs(split)), corpus, plan)

    def corpus_loss(
        self, params: dict, data: EvaluationSet, alive: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """`loss`, `perplexity` and `accuracy` over every pair; `alive` is called for each batch."""
        totals: dict[str, float] = {}
        share = batch_share(self.mesh)
        for step in range(data.plan.steps_per_epoch):
            rows = share.slices(len(data.plan.rows(step)[0]))
            batch = make_share(data.corpus, data.plan, step, rows, self.task.pad_id)
            sums = self.eval_step(params, shard_batch(batch, self.mesh))
            for name, value in jax.device_get(sums).items():
                totals[name] = totals.get(name, 0.0) + float(np.float64(value))
            alive()
        return summarize(totals)

    def measure(
        self,
        params: dict,
        data: EvaluationSet,
        decoding: DecodingConfig,
        *,
        tokenize: str | None = None,
        lowercase: bool | None = None,
        count: int = 0,
        description: str = "translating",
        alive: Callable[[], None] = lambda: None,
    ) -> Evaluation:
        """Loss over all of a set, BLEU and chrF of its translations.

        Args:
          params: of the model, placed on the mesh.
          data: from `load`.
          decoding: how to search.
          tokenize: of BLEU, see `corpus_scores`; None: as configured for the run.
          lowercase: ignore case; None: as configured for the run.
          count: translate the first `count` sentences only; 0: all.
          description: of the progress bar.
          alive: called after each batch.
        """
        from tqdm import tqdm

        losses = self.corpus_loss(params, data, alive)
        translator = Translator(self.task.model, params, *self.tokenizers, decoding, mesh=self.mesh)
        pairs = data.pairs[: count or None]
        start = time.monotonic()
        quiet = not (sys.stderr.isatty() and is_first_process())
        with tqdm(
            total=len(pairs), desc=description, unit="sentence", disable=quiet, leave=False
        ) as bar:

            def progress(sentences: int) -> None:
                bar.update(sentences)
                alive()

            results = translator.translate([pair[0] for pair in pairs], progress=progress)
        hypotheses = [hypotheses[0].text for hypotheses in results]
        seconds = time.monotonic() - start
        settings = self.config.training
        scores = corpus_scores(
            hypotheses,
            [reference for _, reference in pairs],
            tokenize=settings.bleu_tokenize if tokenize is None else tokenize,
            lowercase=settings.bleu_lowercase if lowercase is None else lowercase,
        )
        return Evaluation(**losses, scores=scores, hypotheses=hypotheses, seconds=seconds)
