"""Text in, text out: the one way to translate, in training, in commands and from Python."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer.config import DecodingConfig
from jaxformer.decoding.engine import DecodingResult, Strategy, decode
from jaxformer.decoding.lengths import length_bucket
from jaxformer.decoding.recording import Recorded, Recording
from jaxformer.decoding.search_shape import batch_rows, length_limit, most_sentences
from jaxformer.decoding.strategies import BeamSearch, Greedy
from jaxformer.errors import InputError
from jaxformer.models.transformer import Transformer
from jaxformer.parallel.mesh import batch_parts
from jaxformer.parallel.sharding import (
    BATCH_AXES,
    fetch,
    parameter_shardings,
    place_like_parameters,
    shard_rows,
)
from jaxformer.runtime.distributed import is_first_process
from jaxformer.storage.checkpoint import load_params, resolve_checkpoint
from jaxformer.storage.identity import check_checkpoint
from jaxformer.storage.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence.

    Attributes:
      text: the translation.
      score: log-probability over the length penalty; what the search ranks by.
      log_prob: sum of the natural log-probabilities of its tokens, EOS included.
      num_tokens: with EOS.
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


@partial(jax.jit, static_argnames=("model", "strategy", "ids", "max_length", "mesh"))
def translate_batch(
    params: dict,
    inputs: jax.Array,
    max_lengths: jax.Array,
    *,
    model: Transformer,
    strategy: Strategy,
    ids: tuple[int, int, int, int],
    max_length: int,
    mesh: Mesh | None = None,
) -> DecodingResult:
    """The compiled program of a translation: encode a batch, then search to its end.

    Args:
      params: of the model.
      inputs: int32 `[B, S]`, source ids with EOS.
      max_lengths: int32 `[B]`, each sentence's limit in tokens, EOS included; 0: an empty row.
      model: the `Transformer`.
      strategy: chooses the tokens.
      ids: padding of the source; padding, EOS and BOS of the target.
      max_length: room for tokens in a hypothesis, EOS included.
      mesh: over which parameters and rows are cut; None: one device.
    """
    source_pad, pad_id, eos_id, bos_id = ids
    variables = {"params": _for_every_token(params, model.config.dtype, mesh)}
    inputs_mask = inputs != source_pad
    encoded, _ = model.apply(variables, inputs, inputs_mask=inputs_mask, method="encode")
    cache = model.apply(
        variables,
        encoded,
        max_length,
        inputs_mask=inputs_mask,
        num_hypotheses=strategy.width,
        method="init_cache",
    )

    def step(tokens, index, self_attention):
        logits, new_cache, _ = model.apply(
            variables,
            tokens[:, None],
            cache=cache._replace(self_attention=self_attention, index=index),
            method="decode",
        )
        return logits[:, 0], new_cache.self_attention

    return decode(
        step,
        cache.self_attention,
        strategy,
        batch_size=inputs.shape[0],
        bos_id=bos_id,
        eos_id=eos_id,
        pad_id=pad_id,
        max_length=max_length,
        max_lengths=max_lengths,
    )


def _for_every_token(params: dict, dtype: str, mesh: Mesh | None) -> dict:
    """Parameters as every token's products take them: in the dtype of the computation, and cut over
    `tensor` alone.

    Said once before the search: left alone, XLA for GPUs converts the matrices again for every
    token, and on several devices sends activations over `fsdp` for each.
    """
    matrices = ("kernel", "embedding")

    def convert(path, param):
        return param.astype(dtype) if path[-1].key in matrices else param

    def gather(param: jax.Array, sharding: NamedSharding) -> jax.Array:
        spec = PartitionSpec(*(None if axis in BATCH_AXES else axis for axis in sharding.spec))
        return jax.lax.with_sharding_constraint(param, NamedSharding(mesh, spec))

    converted = jax.tree_util.tree_map_with_path(convert, params)
    if mesh is None:
        return converted
    return jax.tree.map(gather, converted, parameter_shardings(params, mesh))


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
        from jaxformer.data.tokenizers import load_tokenizers

        workdir = Workdir(Path(path))
        config = workdir.load_config()
        folder = resolve_checkpoint(workdir.checkpoints, checkpoint, config.training.best_metric)
        source, target = load_tokenizers(workdir.path)
        check_checkpoint(folder, config, (source, target))
        model = Transformer(config.model)
        abstract = abstract_params(model)
        if mesh is None:
            params = jax.device_put(load_params(folder, abstract))
        else:
            params = load_params(folder, place_like_parameters(abstract, mesh))
        return cls(model, params, source, target, decoding or config.decoding, mesh)

    def __call__(self, text: str | Sequence[str]) -> str | list[str]:
        """Translate one sentence into one, or a list into a list of the same length and order."""
        if isinstance(text, str):
            return self.translate([text])[0][0].text
        return [hypotheses[0].text for hypotheses in self.translate(text)]

    def translate(
        self,
        lines: Sequence[str],
        *,
        progress: Callable[[int], Any] | None = None,
        first_line: int = 1,
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each line, best first; an empty line has one empty hypothesis.

        Args:
          lines: source sentences.
          progress: called with the number of sentences of each finished batch.
          first_line: number of the first line, for warnings.
        """
        encoded = self._encode(lines, first_line)
        results: list[list[Hypothesis]] = [[Hypothesis("", 0.0, 0.0, 0, False)]] * len(lines)
        order = [i for i in np.argsort([len(ids) for ids in encoded], kind="stable") if encoded[i]]
        strategy = make_strategy(self.config)
        for length, rows, members in self._batches(encoded, order):
            result = self._search(encoded, length, rows, members, strategy)
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
        encoded = self._encode([line], number)
        if not encoded[0]:
            raise InputError("the text is blank; there is nothing to translate")
        ((length, rows, members),) = self._batches(encoded, [0])
        strategy = Recording(make_strategy(self.config))
        recorded = self._search(encoded, length, rows, members, strategy)
        return encoded[0], recorded, self._hypotheses(recorded.result, 1)[0]

    def _encode(self, lines: Sequence[str], first_line: int) -> list[list[int]]:
        """Ids with EOS; nothing for a blank line. Lines over the limit are cut, and said so."""
        limit, set_by = self.config.max_source_length, "decoding.max_source_length"
        if (longest := self.model.config.position_limit) and longest < limit:
            limit, set_by = longest, "model.max_length, the rows of learned positions"
        encoded = []
        for number, (line, ids) in enumerate(
            zip(lines, self.source_tokenizer.encode(list(lines)), strict=True), first_line
        ):
            if len(ids) + 1 > limit:
                if is_first_process():
                    print(
                        f"warning: line {number} has {len(ids) + 1} tokens; only the first {limit} "
                        f"are translated ({set_by})",
                        file=sys.stderr,
                    )
                ids = ids[: limit - 1]
            encoded.append([*ids, self.source_tokenizer.eos_id] if line.strip() else [])
        return encoded

    def _batches(
        self, encoded: list[list[int]], order: list[int]
    ) -> Iterable[tuple[int, int, list]]:
        """(source length, rows, members) of each batch: few shapes, so that few are compiled."""
        parts = 1 if self.mesh is None else batch_parts(self.mesh)
        while order:
            length = length_bucket(len(encoded[order[0]]), self.model.config.position_limit)
            fitting = [i for i in order if len(encoded[i]) <= length]
            most = most_sentences(self.config, length)
            for start in range(0, len(fitting), most):
                members = fitting[start : start + most]
                yield length, batch_rows(len(members), most, parts), members
            order = order[len(fitting) :]

    def _search(
        self, encoded: list[list[int]], length: int, rows: int, members: list[int], strategy
    ) -> Any:
        """What `strategy` gives for a batch, as NumPy arrays."""
        source, target = self.source_tokenizer, self.target_tokenizer
        inputs = np.full((rows, length), source.pad_id, np.int32)
        max_lengths = np.zeros(rows, np.int32)  # 0: an empty row, done from the start
        for row, i in enumerate(members):
            inputs[row, : len(encoded[i])] = encoded[i]
            max_lengths[row] = self._length_limit(len(encoded[i]))
        if self.mesh is not None:
            inputs, max_lengths = (shard_rows(x, self.mesh) for x in (inputs, max_lengths))
        result = translate_batch(
            self.params,
            inputs,
            max_lengths,
            model=self.model,
            strategy=strategy,
            ids=(source.pad_id, target.pad_id, target.eos_id, target.bos_id),
            max_length=self._length_limit(length),
            mesh=self.mesh,
        )
        return fetch(result, self.mesh)

    def _length_limit(self, source_length: int) -> int:
        return length_limit(self.config, source_length, self.model.config.position_limit)

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


def abstract_params(model: Transformer) -> dict:
    """Shapes and dtypes of a model's parameters, without computing them."""
    token = jnp.zeros((1, 1), jnp.int32)
    return jax.eval_shape(lambda: model.init(jax.random.key(0), token, token))["params"]
