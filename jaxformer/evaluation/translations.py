"""Evaluate a translation model: loss on a tokenised corpus, BLEU and chrF of its translations."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable

from jax.sharding import Mesh

from jaxformer.config import Config, DecodingConfig
from jaxformer.data.corpus import prepare_corpus
from jaxformer.data.pair_dataset import PairDataset, make_plan
from jaxformer.data.sources import Source
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.decoding.translator import Translator
from jaxformer.evaluation.bleu import CorpusScores, corpus_scores
from jaxformer.evaluation.evaluator import HasLoss, LossEvaluator, Samples
from jaxformer.models.transformer import Transformer
from jaxformer.parallel.mesh import batch_parts
from jaxformer.runtime.distributed import first_process_first, is_first_process


@dataclasses.dataclass(frozen=True)
class TranslationEvaluation:
    """Figures of one corpus.

    Attributes:
      loss: label-smoothed cross-entropy, nats a target token.
      perplexity: `exp` of the unsmoothed cross-entropy.
      accuracy: share of target tokens predicted right, given those before.
      scores: BLEU and chrF with their signatures.
      hypotheses: the translations.
      seconds: spent translating.
      pairs: (source, reference) of the hypotheses.
    """

    loss: float
    perplexity: float
    accuracy: float
    scores: CorpusScores
    hypotheses: list[str]
    seconds: float
    pairs: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    @property
    def sentences(self) -> int:
        return len(self.hypotheses)

    def metrics(self) -> dict[str, float]:
        return {
            "loss": self.loss,
            "perplexity": self.perplexity,
            "accuracy": self.accuracy,
            "bleu": self.scores.bleu,
            "chrf": self.scores.chrf,
        }

    def notes(self) -> dict[str, str]:
        return {"bleu_signature": self.scores.bleu_signature}

    def summary(self) -> str:
        return (
            f"BLEU {self.scores.bleu:.2f}  chrF {self.scores.chrf:.2f}  loss {self.loss:.3f}  "
            f"perplexity {self.perplexity:.2f}  accuracy {self.accuracy:.1%}  "
            f"{self.sentences / self.seconds:,.0f} sentences/s"
        )

    def samples(self) -> Samples:
        rows = [(*pair, text) for pair, text in zip(self.pairs, self.hypotheses, strict=False)]
        return Samples(("source", "reference", "translation"), rows)


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """A split of a source, ready to be measured on: every pair, in order.

    Attributes:
      pairs: (source, reference).
      dataset: the same, tokenised without filters and not shuffled.
    """

    pairs: list[tuple[str, str]]
    dataset: PairDataset


class TranslationEvaluator(LossEvaluator):
    """Measures the loss, and translates.

    Args:
      config: configuration of the run, vocabulary sizes filled in.
      objective: the loss.
      tokenizers: source and target.
      mesh: devices to compute on.
      params: shapes and dtypes of the parameters.
      source: source of the text; None: the caller passes one to `load_from`.
    """

    def __init__(
        self,
        config: Config,
        objective: HasLoss,
        tokenizers: tuple[Tokenizer, Tokenizer],
        mesh: Mesh,
        params: dict,
        source: Source | None = None,
    ):
        super().__init__(objective, mesh, params)
        self.config, self.tokenizers, self._source = config, tokenizers, source
        self.splits = source.splits if source is not None else ()

    def load(self, split: str) -> EvaluationSet:
        return self.load_from(self._source, split)

    def dataset(self, data: EvaluationSet) -> PairDataset:
        return data.dataset

    def load_from(self, source: Source, split: str) -> EvaluationSet:
        """Tokenise and plan a split of any source."""
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
        dataset = PairDataset(corpus, plan, self.tokenizers[0].pad_id)
        return EvaluationSet(list(source.pairs(split)), dataset)

    def measure(
        self,
        params: dict,
        data: EvaluationSet,
        *,
        final: bool,
        description: str = "translating",
        alive: Callable[[], None] = lambda: None,
    ) -> TranslationEvaluation:
        """Loss over all of a set, BLEU and chrF of its translations.

        During training the first training.eval_sentences are translated, with
        training.eval_beam_size.
        """
        settings, decoding = self.config.training, self.config.decoding
        if final:
            return self.translate_and_score(
                params, data, decoding, description=description, alive=alive
            )
        decoding = dataclasses.replace(decoding, beam_size=settings.eval_beam_size)
        return self.translate_and_score(
            params, data, decoding, count=settings.eval_sentences, alive=alive
        )

    def translate_and_score(
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
    ) -> TranslationEvaluation:
        """Loss over all of a set, BLEU and chrF of its translations.

        Args:
          params: parameters of the model, placed on the mesh.
          data: from `load` or `load_from`.
          decoding: how to search.
          tokenize: BLEU's tokenizer, see `corpus_scores`; None: as configured for the run.
          lowercase: ignore case; None: as configured for the run.
          count: translate the first `count` sentences only; 0: all.
          description: label of the progress bar.
          alive: called after each batch.
        """
        from tqdm import tqdm

        losses = self.mean_loss(params, data.dataset, alive)
        model = Transformer(self.config.model)
        translator = Translator(model, params, *self.tokenizers, decoding, mesh=self.mesh)
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
        return TranslationEvaluation(
            **losses, scores=scores, hypotheses=hypotheses, seconds=seconds, pairs=pairs
        )
