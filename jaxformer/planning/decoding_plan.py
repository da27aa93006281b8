"""What translating would need and reach on devices that need not be here."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.config import DecodingConfig
from jaxformer.decoding.lengths import length_bucket
from jaxformer.decoding.search_shape import (
    SearchShape,
    batch_rows,
    length_limit,
    most_sentences,
)
from jaxformer.decoding.translator import make_strategy, translate_batch
from jaxformer.errors import InputError
from jaxformer.models.flops import Flops, decoding_flops
from jaxformer.models.transformer import Transformer
from jaxformer.parallel.mesh import batch_parts
from jaxformer.parallel.sharding import batch_sharding
from jaxformer.planning.hlo_text import called, open_loops, read_computations
from jaxformer.planning.program_costs import Costs, ProgramReader
from jaxformer.planning.step_plan import PlannedRun
from jaxformer.training.checks.memory import (
    advise_when_out_of_memory,
    bytes_per_device,
    format_bytes,
)

PAD_ID, EOS_ID, BOS_ID = 0, 1, 2  # of vocabularies that are trained here


class SearchMemory(NamedTuple):
    """Bytes of one device that translating a batch needs.

    Attributes:
      parameters: of the model.
      batch: source ids and length limits.
      cache: keys and values of both attentions of the decoder, for the device's rows; a part of
        `temporaries`, unless a TPU holds them on the chip.
      temporaries: all that lives only within the call, the result and the program.
    """

    parameters: int
    batch: int
    cache: int
    temporaries: int

    @property
    def total(self) -> int:
        return self.parameters + self.batch + self.temporaries


@dataclasses.dataclass(frozen=True)
class DecodingPlan:
    """A compiled search, as numbers of one device.

    Attributes:
      shape: of the batch.
      devices: number of them.
      needed: bytes of memory; None if the compiler does not tell.
      token: a round of the loop, which gives every hypothesis a token.
      whole: the call, if every sentence runs to the limit.
      text: of the compiled program.
    """

    shape: SearchShape
    devices: int
    needed: SearchMemory | None
    token: Costs
    whole: Costs
    text: str = dataclasses.field(default="", repr=False)

    @property
    def tokens(self) -> int:
        """Target tokens of the translations of a batch, one for each sentence, at the limit."""
        return self.shape.rows * self.shape.max_length


def search_shape(run: PlannedRun, length: int, sentences: int | None = None) -> SearchShape:
    """The shape that `Translator` gives a batch on the run's devices.

    Args:
      run: from `plan_run`.
      length: source tokens of its longest sentence, EOS included.
      sentences: of the batch over all devices; None: as many as decoding.tokens_per_batch holds.

    Raises:
      InputError: the translator would cut so long a sentence, or split so large a batch.
    """
    config, limit = run.config.decoding, run.config.model.position_limit
    longest = min(config.max_source_length, limit or config.max_source_length)
    if not 2 <= length <= longest:
        raise InputError(
            f"--length={length} must be between 2 and decoding.max_source_length="
            f"{config.max_source_length}"
            + (f" and model.max_length={limit}, the learned positions" if limit else "")
        )
    length = length_bucket(length, limit)
    most = most_sentences(config, length)
    sentences = most if sentences is None else sentences
    if not 1 <= sentences <= most:
        raise InputError(
            f"--batch={sentences}: decoding.tokens_per_batch={config.tokens_per_batch} holds 1 to "
            f"{most} sentences of {length} tokens; set "
            f"--config.decoding.tokens_per_batch={max(sentences, 1) * length}"
        )
    return SearchShape(
        rows=batch_rows(sentences, most, batch_parts(run.mesh)),
        source_length=length,
        max_length=length_limit(config, length, limit),
        width=make_strategy(config).width,
    )


def _abstract_rows(run: PlannedRun, shape: SearchShape) -> tuple[jax.ShapeDtypeStruct, ...]:
    """`inputs [B, S]` and `max_lengths [B]`, as `Translator` places them."""
    return tuple(
        jax.ShapeDtypeStruct(sizes, jnp.int32, sharding=batch_sharding(run.mesh))
        for sizes in ((shape.rows, shape.source_length), (shape.rows,))
    )


def compile_decoding(run: PlannedRun, shape: SearchShape) -> jax.stages.Compiled:
    """The program that `Translator` runs for a batch, compiled for the run's devices.

    Args:
      run: from `plan_run`; `config.decoding.beam_size` 1 is greedy.
      shape: from `search_shape`.
    """
    lowered = translate_batch.lower(
        run.abstract.params,
        *_abstract_rows(run, shape),
        model=Transformer(run.config.model),
        strategy=make_strategy(run.config.decoding),
        ids=(PAD_ID, PAD_ID, EOS_ID, BOS_ID),
        max_length=shape.max_length,
        padding=None,
        mesh=run.mesh,
    )
    return lowered.compile()


def plan_decoding(run: PlannedRun, shape: SearchShape, device_kind: str) -> DecodingPlan:
    """Compile the search of a batch for the run's devices, and read the program.

    Args:
      run: from `plan_run`.
      shape: from `search_shape`.
      device_kind: whose published speeds to reckon with.

    Raises:
      InputError: the compiler finds that the search does not fit into memory.
    """
    with advise_when_out_of_memory(smaller_search(run.config.decoding)):
        compiled = compile_decoding(run, shape)
    model, count = run.config.model, run.mesh.size
    reader = ProgramReader(compiled, run.mesh, model.dtype, device_kind)
    before, a_round = decoding_flops(model, **shape._asdict())
    every = Flops(*(b + shape.max_length * r for b, r in zip(before, a_round, strict=True)))
    return DecodingPlan(
        shape=shape,
        devices=count,
        needed=search_memory(compiled, run, shape),
        token=reader.costs(a_round.times(1 / count), starts=search_loop(reader.text)),
        whole=reader.costs(every.times(1 / count), unknown_trips=shape.max_length),
        text=reader.text,
    )


def search_loop(text: str) -> tuple[str, str]:
    """Body and condition of the loop over target tokens in a program of `translate_batch`.

    It is the only loop of the program whose length is not known beforehand; those over layers of
    `model.scan_layers` are.

    Args:
      text: of the compiled program.

    Raises:
      ValueError: there are several such loops, or none.
    """
    loops = open_loops(*read_computations(text))
    if len(loops) != 1:
        names = ", ".join(loop.name for loop in loops) or "none"
        raise ValueError(f"one loop of unknown length expected in a search, found {names}")
    return called(loops[0], "body"), called(loops[0], "condition")


def search_memory(compiled, run: PlannedRun, shape: SearchShape) -> SearchMemory | None:
    """What a compiled search needs, by XLA's account; None if it gives none."""
    needed = compiled.memory_analysis()
    if needed is None:
        return None
    return SearchMemory(
        parameters=bytes_per_device(run.abstract.params),
        batch=bytes_per_device(_abstract_rows(run, shape)),
        cache=cache_bytes(run, shape),
        temporaries=needed.temp_size_in_bytes
        + needed.output_size_in_bytes
        - needed.alias_size_in_bytes
        + needed.generated_code_size_in_bytes,
    )


def cache_bytes(run: PlannedRun, shape: SearchShape) -> int:
    """Bytes of a device's rows of the decoder's keys and values, cut by heads over `tensor`."""
    config, mesh = run.config.model, run.mesh
    token = 2 * config.num_decoder_layers * config.d_model * jnp.dtype(config.dtype).itemsize
    tokens = shape.rows * (shape.width * shape.max_length + shape.source_length)
    return math.ceil(tokens * token / (batch_parts(mesh) * mesh.shape["tensor"]))


def refuse_decoding(run: PlannedRun, plan: DecodingPlan) -> list[str]:
    """Why a batch could not be translated, with what would do; empty if it can."""
    needed, chip = plan.needed, plan.whole.chip
    if not needed or not chip or needed.total <= chip.memory:
        return []
    return [
        f"the search needs {format_bytes(needed.total)} of {format_bytes(chip.memory)} a device; "
        f"{smaller_search(run.config.decoding)}"
    ]


def smaller_search(config: DecodingConfig) -> str:
    """What to change when the memory of a search runs out."""
    smaller = f"set decoding.tokens_per_batch={max(config.tokens_per_batch // 2, 1)} (now "
    smaller += f"{config.tokens_per_batch})"
    if config.beam_size > 1:
        smaller += f", decoding.beam_size below {config.beam_size}"
    return f"{smaller}, or use more devices"
