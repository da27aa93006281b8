"""Text in, text out: the one way to translate, in training, in commands and from Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxformer.config import DecodingConfig
from jaxformer.decoding.engine import DecodingResult, Strategy
from jaxformer.decoding.lengths import length_bucket
from jaxformer.decoding.program import translate_batch
from jaxformer.decoding.recording import Recorded, Recording
from jaxformer.decoding.search_shape import batch_rows, length_limit, most_sentences
from jaxformer.decoding.sentences import Sentence, make_sentences
from jaxformer.decoding.strategies import BeamSearch, Greedy
from jaxformer.errors import InputError, check_range
from jaxformer.models.transformer import Transformer
from jaxformer.parallel.mesh import batch_parts
from jaxformer.parallel.sharding import fetch, shard_rows


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence.

    Attributes:
      text: the translation, with its prefix.
      score: log-probability over the length penalty; what the search ranks by.
      log_prob: sum of the natural log-probabilities of its tokens, prefix and EOS included.
      num_tokens: with prefix and EOS.
      truncated: the length limit ended it, not the model.
    """

    text: str
    score: float
    log_prob: float
    num_tokens: int
    truncated: bool


def make_strategy(config: DecodingConfig) -> Strategy:
    """Greedy for one beam, else beam search."""
    if config.beam_size == 1:
        return Greedy()
    return BeamSearch(config.beam_size, config.length_penalty, config.alpha)


class Translator:
    """Translates sentences with a model, its parameters and its tokenizers.

    A sentence's translation does not depend on its neighbours, on padding or on the batch size:
    length limits are per sentence, and batches are only a matter of speed.

    Example:
      >>> translator = Translator.from_workdir("runs/pocket")
      >>> translator("The cat is black.")
      'Le chat est noir.'
    """

    def __init__(
        self,
        model: Transformer,
        params: dict,
        source_tokenizer,
        target_tokenizer,
        config: DecodingConfig | None = None,
        mesh: Mesh | None = None,
    ):
        self.model = model
        self.params = params
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.config = config or DecodingConfig()
        self.mesh = mesh

    @classmethod
    def from_workdir(
        cls,
        path: str | Path,
        *,
        checkpoint: str = "best",
        decoding: DecodingConfig | None = None,
        mesh: Mesh | None = None,
    ) -> Translator:
        """Load what `train.py` left in a workdir.

        Args:
          path: the workdir.
          checkpoint: `best`, `latest`, a step, or the name of an average.
          decoding: None: as configured for the run.
          mesh: on which to compute; None: one device.

        Raises:
          InputError: no workdir, no such checkpoint, or one that was trained with another model or
            vocabulary than the workdir's.
        """
        from jaxformer.tasks.open_run import open_run

        run = open_run(path, checkpoint, mesh)
        if run.config.task != "translation":
            raise InputError(
                f"{path} holds a run with task={run.config.task!r}, which translates nothing; name "
                "the workdir of a translation model"
            )
        params = jax.device_put(run.params) if mesh is None else run.params
        model = Transformer(run.config.model)
        return cls(model, params, *run.vocabularies, decoding or run.config.decoding, mesh)

    def __call__(self, text: str | Sequence[str]) -> str | list[str]:
        """Translate one sentence into one, or a list into a list of the same length and order."""
        if isinstance(text, str):
            return self.translate([text])[0][0].text
        return [hypotheses[0].text for hypotheses in self.translate(text)]

    def translate(
        self,
        lines: Sequence[str],
        prefixes: Sequence[str] | None = None,
        *,
        strategy: Strategy | None = None,
        seed: int = 0,
        progress: Callable[[int], Any] | None = None,
        first_line: int = 1,
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each line, best first; an empty line has one empty hypothesis.

        A prefix is tokenised by itself and its pieces are kept as they are. So it ends where a
        piece ends: after `"Le ch"` the model may go on with `"at"`, or with a new word, but cannot
        go back to the piece `"chat"` that it knows from training. Prefixes that end with a word
        work best.

        Args:
          lines: source sentences.
          prefixes: target text that the translations begin with, one for each line, `""` for none.
          strategy: how to search; None: as the configuration says. `Sample(num_samples=3)` draws
            three translations of each line, which are listed as drawn.
          seed: of a strategy that draws. A draw depends on it, the number of the line and the
            number of the sample alone: not on other lines, nor on batches or devices.
          progress: called with the number of sentences of each finished batch.
          first_line: number of the first line, for warnings and draws.

        Raises:
          InputError: a prefix is too long or belongs to a blank line, there are more or fewer of
            them than lines, or the seed is out of range.
        """
        sentences = self._sentences(lines, prefixes, first_line)
        strategy = strategy or make_strategy(self.config)
        check_range("seed", seed, 0, 2**31 - 1)
        results: list[list[Hypothesis]] = [[Hypothesis("", 0.0, 0.0, 0, False)]] * len(lines)
        lengths = [len(sentence.ids) for sentence in sentences]
        order = [i for i in np.argsort(lengths, kind="stable") if lengths[i]]
        for length, rows, members in self._batches(lengths, order):
            batch = [sentences[i] for i in members]
            result = self._search(batch, length, rows, strategy, seed)
            outputs = self._hypotheses(result, len(members))
            for i, hypotheses in zip(members, outputs, strict=True):
                results[i] = hypotheses
            if progress is not None:
                progress(len(members))
        return results

    def record(self, line: str, *, number: int = 1) -> tuple[list[int], Recorded, list[Hypothesis]]:
        """Translate one line as `translate` does, and keep what the search weighed on its way.

        Args:
          line: source sentence.
          number: of the line, for warnings.

        Returns:
          The source ids with EOS, the NumPy record in row 0 of its arrays, and the hypotheses.

        Raises:
          InputError: the line is blank.
        """
        (sentence,) = self._sentences([line], None, number)
        if not sentence.ids:
            raise InputError("the text is blank; there is nothing to translate")
        ((length, rows, _),) = self._batches([len(sentence.ids)], [0])
        strategy = Recording(make_strategy(self.config))
        recorded = self._search([sentence], length, rows, strategy, seed=0)
        return sentence.ids, recorded, self._hypotheses(recorded.result, 1)[0]

    def _sentences(self, lines, prefixes, first_line: int) -> list[Sentence]:
        tokenizers = self.source_tokenizer, self.target_tokenizer
        limit = self.model.config.position_limit
        return make_sentences(lines, prefixes, tokenizers, self.config, limit, first_line)

    def _batches(self, lengths: list[int], order: list[int]) -> Iterable[tuple[int, int, list]]:
        """(source length, rows, members) of each batch: few shapes, so that few are compiled."""
        parts = 1 if self.mesh is None else batch_parts(self.mesh)
        while order:
            length = length_bucket(lengths[order[0]], self.model.config.position_limit)
            fitting = [i for i in order if lengths[i] <= length]
            most = most_sentences(self.config, length)
            for start in range(0, len(fitting), most):
                members = fitting[start : start + most]
                yield length, batch_rows(len(members), most, parts), members
            order = order[len(fitting) :]

    def _search(
        self, batch: list[Sentence], length: int, rows: int, strategy: Strategy, seed: int
    ) -> Any:
        """What `strategy` gives for a batch, as NumPy arrays."""
        source, target = self.source_tokenizer, self.target_tokenizer
        position_limit = self.model.config.position_limit
        max_length = length_limit(self.config, length, position_limit)
        # A limit of 0 is an empty row, done from the start.
        padding = None
        arrays = [
            _padded([sentence.ids for sentence in batch], (rows, length), source.pad_id),
            _column([sentence.limit for sentence in batch], rows),
            None,
            None,
            None,
        ]
        if longest := max(len(sentence.prefix) for sentence in batch):
            # Padding costs columns of the cache in every step, so these sizes are close together.
            size = min(-(-longest // 8) * 8, max_length)
            prefixes = [sentence.prefix for sentence in batch]
            shortest = min(len(prefix) for prefix in prefixes)
            padding = min(-(-(size - shortest) // 8) * 8, size)
            arrays[2] = _padded(prefixes, (rows, size), target.pad_id)
            arrays[3] = _column([len(prefix) for prefix in prefixes], rows)
        if strategy.needs_key:
            arrays[4] = _column([sentence.number for sentence in batch], rows)
        if self.mesh is not None:
            arrays = [None if x is None else shard_rows(x, self.mesh) for x in arrays]
        inputs, max_lengths, prompts, prompt_lengths, row_ids = arrays
        result = translate_batch(
            self.params,
            inputs,
            max_lengths,
            prompts,
            prompt_lengths,
            np.int32(seed) if strategy.needs_key else None,
            row_ids,
            model=self.model,
            strategy=strategy,
            ids=(source.pad_id, target.pad_id, target.eos_id, target.bos_id),
            max_length=max_length,
            padding=padding,
            mesh=self.mesh,
        )
        return fetch(result, self.mesh)

    def _hypotheses(self, result: DecodingResult, rows: int) -> list[list[Hypothesis]]:
        if not np.isfinite(result.scores[:rows, 0]).all():
            raise FloatingPointError(
                "the model gives NaN for a sentence; the parameters of this checkpoint are damaged "
                "or the training diverged"
            )
        found = []
        for row in range(rows):
            count = int(result.num_hypotheses[row])
            lengths = result.lengths[row, :count]
            ids = [result.tokens[row, w, : lengths[w] - 1].tolist() for w in range(count)]
            texts = self.target_tokenizer.decode(ids)
            found.append(
                [
                    Hypothesis(
                        texts[w].replace("\n", " "),
                        float(result.scores[row, w]),
                        float(result.log_probs[row, w]),
                        int(lengths[w]),
                        bool(result.truncated[row, w]),
                    )
                    for w in range(count)
                ]
            )
        return found


def _padded(rows: list[list[int]], shape: tuple[int, int], pad_id: int) -> np.ndarray:
    """int32 of `shape`, a list in each row from the left."""
    array = np.full(shape, pad_id, np.int32)
    for row, ids in enumerate(rows):
        array[row, : len(ids)] = ids
    return array


def _column(values: list[int], rows: int) -> np.ndarray:
    """int32 `[rows]`, 0 after the values."""
    return np.array([*values, *[0] * (rows - len(values))], np.int32)


def abstract_params(model: Transformer) -> dict:
    """Shapes and dtypes of a model's parameters, without computing them."""
    token = jnp.zeros((1, 1), jnp.int32)
    return jax.eval_shape(lambda: model.init(jax.random.key(0), token, token))["params"]
