"""All that a run needs before its first step: tokenizers, data, task, state."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxformer.config import Config
from jaxformer.data.batching import Plan
from jaxformer.data.corpus import TokenizedCorpus, prepare_corpus
from jaxformer.data.loader import make_plan, plan_summary
from jaxformer.data.row_padding import RowPadding
from jaxformer.data.sources import Source, make_source
from jaxformer.data.subword_sampling import SubwordSampler, make_sampler
from jaxformer.data.tokenizer_training import load_or_train
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import InputError
from jaxformer.evaluation.bleu import make_bleu
from jaxformer.evaluation.evaluate import EvaluationSet, Evaluator
from jaxformer.parallel.mesh import batch_parts, check_divides, describe_mesh, make_mesh
from jaxformer.runtime.distributed import barrier, first_process_first, is_first_process
from jaxformer.storage.identity import Identity, identify
from jaxformer.storage.workdir import Workdir
from jaxformer.tasks.translation import Translation
from jaxformer.training.checks.attention_check import check_attention
from jaxformer.training.metrics import HELD_OUT, log
from jaxformer.training.program import TrainingProgram
from jaxformer.training.resume import Origin
from jaxformer.training.state import make_finite_check


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything fixed about a run; the state is what changes."""

    config: Config
    workdir: Workdir
    origin: Origin
    identity: Identity
    source: Source
    tokenizers: tuple[Tokenizer, Tokenizer]
    corpus: TokenizedCorpus
    plan: Plan
    sampler: SubwordSampler | None  # None: tokenizer.sampling_rate is 0
    validation: EvaluationSet
    mesh: Mesh
    task: Translation
    program: TrainingProgram
    abstract: Any  # TrainState of shapes, dtypes and shardings
    train_step: Any
    is_finite: Any  # TrainState -> bool scalar
    evaluator: Evaluator


def check_special_ids(source: Tokenizer, target: Tokenizer) -> None:
    """Raise `InputError` unless both sides pad with the same id."""
    if source.pad_id != target.pad_id:
        raise InputError(
            f"tokenizer.model_file pads with id {source.pad_id}, tokenizer.target_model_file with "
            f"{target.pad_id}; train both with the same pad_id"
        )


def with_vocabularies(config: Config, vocab_size: int, target_vocab_size: int) -> Config:
    """The configuration with the model's vocabulary sizes filled in; target 0: shared."""
    model = dataclasses.replace(
        config.model, vocab_size=vocab_size, target_vocab_size=target_vocab_size
    )
    return dataclasses.replace(config, model=model)


def with_batching(config: Config, origin: Origin, mesh: Mesh) -> Config:
    """The configuration with `data.batching=auto` decided: as the run began, or by the devices."""
    platform = mesh.devices.flat[0].platform
    data = config.data.for_platform(platform)
    if config.data.batching == "auto" and origin.identity is not None:
        begun = origin.identity.config.data.for_platform(platform)
        data = dataclasses.replace(data, batching=begun.batching)
    return dataclasses.replace(config, data=data)


def check_splits(source: Source, config: Config) -> None:
    """Raise `InputError` unless there is text to train on and text to validate with."""
    for split in ("train", "validation"):
        if split not in source.splits:
            raise InputError(
                f"the data has no {split} split (data.{split}={getattr(config.data, split)!r}); "
                f"it has {', '.join(source.splits)}"
            )


def plan_batches(
    corpus: TokenizedCorpus,
    config: Config,
    sampler: SubwordSampler | None,
    planned_rows: int,
    row_multiple: int,
) -> Plan:
    """The plan of a run, in which rows come in multiples of `planned_rows`.

    Devices that cannot share these get empty rows besides, up to a multiple of `row_multiple`.
    """
    plan = make_plan(
        corpus,
        config.data,
        seed=config.seed,
        row_multiple=planned_rows,
        shuffle=True,
        sampler=sampler,
    )
    return RowPadding(plan, row_multiple) if planned_rows % row_multiple else plan


def check_positions(limit: int, plans: dict[str, Plan]) -> None:
    """Raise `InputError` if a row of a plan is longer than the `limit` learned positions."""
    for split, plan in plans.items():
        longest = max(max(shape.source_length, shape.target_length) for shape in plan.shapes())
        if longest > limit:
            raise InputError(
                f"model.max_length={limit} learned positions are too few for rows of {longest} "
                f"tokens (padding included) of data.{split}; raise it to at least {longest}"
            )


def prepare_run(config: Config, path: Path, allow_changes: Sequence[str] = ()) -> Run:
    """Build a `Run` in the workdir `path`; trains the tokenizer and tokenises where needed.

    Args:
      config: of the run.
      path: the workdir.
      allow_changes: names of fields and sections that may differ from the run in the workdir,
        although that trains something else.

    Raises:
      InputError: anything about the configuration, the data or the workdir that cannot work.
    """
    make_bleu(config.training.bleu_tokenize, name="training.bleu_tokenize")  # hours before its use
    workdir = Workdir(path)
    mesh = make_mesh(config.mesh)
    check_divides(config.model, mesh)
    with first_process_first():  # who prepares a TFDS data set
        source = make_source(config.data, config.seed)
    source.fingerprint = functools.cache(source.fingerprint)  # large texts are read once for it
    check_splits(source, config)
    origin = Origin.of(workdir, allow_changes)
    config = with_batching(config, origin, mesh)
    if origin.identity is not None:
        stored = origin.identity.config.model
        config = with_vocabularies(config, stored.vocab_size, stored.target_vocab_size)
        origin.check_config(config)
    barrier()  # all have seen what is there before the first process adds to it
    with first_process_first():
        tokenizers = load_or_train(config.tokenizer, source, path)
    check_special_ids(*tokenizers)
    origin.check_tokenizers(tokenizers)
    sizes = [tokenizer.vocab_size for tokenizer in tokenizers]
    config = with_vocabularies(config, sizes[0], 0 if config.tokenizer.joint else sizes[1])
    row_multiple = batch_parts(mesh) * config.optimizer.accumulation_steps
    identity = identify(config, tokenizers, source, mesh)
    origin.check(identity)
    planned_rows = origin.row_multiple(config, identity.corpus, row_multiple)
    identity = dataclasses.replace(identity, row_multiple=planned_rows)
    if is_first_process():
        workdir.store_config(config)
    with first_process_first():
        corpus = prepare_corpus(
            source, "train", *tokenizers, config.data, filters=True, progress=is_first_process()
        )
    sampler = make_sampler(corpus, tokenizers, config)
    plan = plan_batches(corpus, config, sampler, planned_rows, row_multiple)
    task = Translation(config.model, pad_id=tokenizers[0].pad_id, bos_id=tokenizers[1].bos_id)
    program = TrainingProgram(task, config.optimizer, config.training)
    abstract = program.abstract(mesh)
    evaluator = Evaluator(config, task, tokenizers, mesh, abstract.params)
    validation = evaluator.load(source, "validation")
    if config.model.position_limit is not None:
        # Held-out splits are measured when the run has ended: better refused before it begins.
        held_out = [split for split in HELD_OUT if split in source.splits]
        plans = {"train": plan, "validation": validation.plan}
        plans |= {split: evaluator.load(source, split).plan for split in held_out}
        check_positions(config.model.position_limit, plans)
    log(check_attention(config, plan.shapes(), mesh, evaluated=validation.plan.shapes()))
    return Run(
        config=config,
        workdir=workdir,
        origin=origin,
        identity=identity,
        source=source,
        tokenizers=tokenizers,
        corpus=corpus,
        plan=plan,
        sampler=sampler,
        validation=validation,
        mesh=mesh,
        task=task,
        program=program,
        abstract=abstract,
        train_step=program.train_step(mesh),
        is_finite=make_finite_check(mesh),
        evaluator=evaluator,
    )


def count_parameters(params: Any) -> dict[str, int]:
    """Parameters by the first part of their path, and `total`."""
    counts = {
        name: sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))
        for name, tree in params.items()
    }
    return counts | {"total": sum(counts.values())}


def describe_run(run: Run) -> str:
    """What is about to be trained, on what, from what."""
    model = run.config.model
    steps, warmup = run.config.training.num_steps, run.config.optimizer.warmup_steps
    counts = count_parameters(run.abstract.params)
    parts = ", ".join(f"{name} {count:,}" for name, count in counts.items() if name != "total")
    sizes = [tokenizer.vocab_size for tokenizer in run.tokenizers]
    vocabulary = (
        f"joint vocabulary of {sizes[0]:,}"
        if run.config.tokenizer.joint
        else f"vocabularies of {sizes[0]:,} and {sizes[1]:,}"
    )
    late = (
        f"warm-up   optimizer.warmup_steps={warmup} are not over when the "
        f"training.num_steps={steps} are: the learning rate only rises"
    )
    return "\n".join(
        [
            f"workdir   {run.workdir.path}",
            f"devices   {describe_mesh(run.mesh)}",
            f"model     {model.num_encoder_layers}+{model.num_decoder_layers} layers, d_model "
            f"{model.d_model}, d_ff {model.d_ff}, {model.num_heads} heads, {model.norm}-norm, "
            f"{model.activation}, {model.positions} positions, {model.dtype}",
            f"          {counts['total']:,} parameters: {parts}",
            f"data      {run.source.describe('train')}",
            f"          {run.corpus.report.summary()}; {vocabulary}",
            f"batches   {run.config.data.batching}, {run.config.data.tokens_per_batch:,} tokens a "
            "side",
            *(f"          {line}" for line in plan_summary(run.plan, run.sampler).splitlines()),
            *([late] if warmup >= steps else []),
        ]
    )
