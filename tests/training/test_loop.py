"""The life of a run: what it leaves, how it stops, and that going on changes nothing."""

import json
import re
import shutil
import signal
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from training_run import (
    change,
    read_metrics,
    replace_measurement,
    send_signal_after,
    use_devices,
    write_pairs,
)

from jaxformer.config import Config
from jaxformer.data import pair_dataset
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.decoding.translator import Translator, abstract_params
from jaxformer.errors import InputError
from jaxformer.models.transformer import Transformer
from jaxformer.ops.losses import shift_right
from jaxformer.storage.checkpoint import list_steps, load_params, step_metrics
from jaxformer.storage.workdir import Workdir
from jaxformer.training.loop import Selection, train
from jaxformer.training.program import TrainingProgram
from jaxformer.training.setup import prepare_run


def stored_params(workdir, step, *, ema=False):
    """NumPy parameters of a step of a workdir."""
    model = Transformer(Workdir(workdir).load_config().model)
    return load_params(workdir / "checkpoints" / str(step), abstract_params(model), ema=ema)


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_a_run_leaves_all_that_the_commands_need(small_run):
    workdir = small_run.workdir
    assert list_steps(workdir / "checkpoints") == [20, 40, 60, 80, 100, 120]
    assert sorted(path.name for path in workdir.iterdir()) == [
        "checkpoints", "config.json", "metrics.jsonl", "samples", "tensorboard", "tokenizer.model",
    ]  # fmt: skip
    stored = Workdir(workdir).load_config()
    assert stored == change(small_run.config, model__vocab_size=350, data__batching="buckets")
    samples = (workdir / "samples" / "step_120.tsv").read_text("utf-8").split("\n")
    assert samples[0] == "source\treference\ttranslation" and len(samples) == 1 + 16 + 1
    valid = (small_run.corpus / "valid.en").read_text("utf-8").split("\n")
    assert [line.split("\t")[0] for line in samples[1:-1]] == valid[:-1]
    assert list((workdir / "tensorboard").iterdir())


def test_metrics_have_each_step_once_and_show_learning(small_run):
    rows = read_metrics(small_run.workdir)
    steps = {split: [r["step"] for r in rows if r["split"] == split] for split in
             ("train", "validation", "test")}  # fmt: skip
    assert steps == {"train": [20, 40, 60, 80, 100, 120], "validation": [40, 80, 120],
                     "test": [120]}  # fmt: skip
    trained = read_metrics(small_run.workdir, "train")
    assert trained[0]["loss"] > 3.0 and trained[-1]["loss"] < 2.0
    assert trained[-1]["accuracy"] > trained[0]["accuracy"]
    # inverse_sqrt: the peak 1e-2 at step 20, half of it four times later
    assert trained[0]["learning_rate"] == pytest.approx(1e-2)
    assert trained[3]["learning_rate"] == pytest.approx(5e-3)
    validated = read_metrics(small_run.workdir, "validation")
    assert validated[-1]["bleu_signature"].startswith("nrefs:1|case:mixed")
    metrics = step_metrics(small_run.workdir / "checkpoints", 120)
    assert metrics["bleu"] == validated[-1]["bleu"] and metrics["loss"] == validated[-1]["loss"]
    assert step_metrics(small_run.workdir / "checkpoints", 100) == {}


def test_stopped_and_resumed_is_bit_identical_to_uninterrupted(small_run, tmp_path, capsys):
    first = train(change(small_run.config, training__num_steps=60), tmp_path)
    assert (first.step, first.exit_status) == (60, 0)
    assert_same(stored_params(tmp_path, 60), stored_params(small_run.workdir, 60))
    capsys.readouterr()
    second = train(small_run.config, tmp_path)
    out = capsys.readouterr().out
    assert "changed since the last start: training.num_steps: 60 -> 120" in out
    assert f"resuming from the checkpoint of step 60 in {tmp_path / 'checkpoints'}" in out
    assert (second.step, second.reason) == (120, "all 120 steps are done")
    for step in (80, 120):
        assert_same(stored_params(tmp_path, step), stored_params(small_run.workdir, step))
    columns = ("step", "loss", "perplexity", "accuracy", "gradient_norm", "epoch")
    resumed, whole = (
        [[row[name] for name in columns] for row in read_metrics(workdir, "train")]
        for workdir in (tmp_path, small_run.workdir)
    )
    assert resumed == whole
    assert [r["step"] for r in read_metrics(tmp_path, "validation")] == [40, 60, 80, 120]


VARIANTS = {
    "ema, accumulation": dict(
        optimizer__ema_decay=0.9, optimizer__accumulation_steps=2, data__tokens_per_batch=512
    ),
    "muon, r-drop, sampled segmentations": dict(
        optimizer__name="muon",
        training__r_drop_alpha=5.0,
        tokenizer__sampling_rate=0.2,
        data__workers=1,
        data__tokens_per_batch=512,
    ),
    "packed, two vocabularies, scanned pre-norm layers": dict(
        data__batching="packed",
        data__max_length=32,
        tokenizer__joint=False,
        tokenizer__vocab_size=300,
        model__tie_embeddings=False,
        model__norm="pre",
        model__scan_layers=True,
        optimizer__weight_decay=0.01,
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_signal_saves_between_two_steps_and_the_run_goes_on(
    small_run, one_device, tmp_path, monkeypatch, capsys, name
):
    changes = dict(training__num_steps=9, training__log_every=3, training__eval_every=100)
    config = change(small_run.config, **changes, **VARIANTS[name])
    replace_measurement(monkeypatch, [1.0] * 10)
    train(config, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        send_signal_after(patch, 5, signal.SIGTERM)
        stopped = train(config, tmp_path / "stopped")
    assert (stopped.step, stopped.reason) == (5, "SIGTERM received")
    assert (stopped.exit_status, stopped.evaluations) == (143, {})
    assert list_steps(tmp_path / "stopped" / "checkpoints") == [5]
    out = capsys.readouterr().out
    assert f"saved: step 5 in {tmp_path / 'stopped'}" in out
    assert "the same command" in out
    resumed = train(config, tmp_path / "stopped")
    assert (resumed.step, resumed.exit_status) == (9, 0)
    for ema in (False, True):
        whole, parts = (stored_params(tmp_path / w, 9, ema=ema) for w in ("whole", "stopped"))
        assert_same(whole, parts)
    steps = [row["step"] for row in read_metrics(tmp_path / "stopped", "train")]
    assert steps == [3, 6, 9]


def first_losses(config, workdir, **option):
    """Losses of the first two updates on one device."""
    config = change(config, training__num_steps=2, training__log_every=1, **option)
    with pytest.MonkeyPatch.context() as patch:
        use_devices(patch, 1)
        replace_measurement(patch, [1.0] * 2)
        train(config, workdir)
    return [f"{row['loss']:.4f}" for row in read_metrics(workdir, "train")]


class FirstUpdate(NamedTuple):
    """One update of a run on one device: what it started from, and its result."""

    config: Config
    params: dict
    batch: dict
    key: jax.Array  # of the update
    sums: dict
    updated: dict

    @property
    def loss(self):
        return self.sums["loss"] / self.sums["weight"]


class WatchedStep:
    """A compiled train step that keeps its first call."""

    def __init__(self, step):
        self.step, self.first = step, None

    def __call__(self, state, batch, key):
        before = jax.device_get((state.params, batch))
        key_of_update = jax.random.fold_in(key, state.step)
        state, sums = self.step(state, batch, key)
        if self.first is None:
            self.first = (*before, key_of_update, *jax.device_get((sums, state.params)))
        return state, sums

    def __getattr__(self, name):
        return getattr(self.step, name)


def first_update(config, workdir, **option):
    """The first update of `train`, without dropout unless `option` has some."""
    plain = dict(model__dropout_rate=0.0, optimizer__clip_norm=0.0, training__num_steps=1)
    config = change(config, **plain | option)
    made, steps = TrainingProgram.train_step, []

    def watched(program, mesh):
        steps.append(WatchedStep(made(program, mesh)))
        return steps[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingProgram, "train_step", watched)
        use_devices(patch, 1)
        replace_measurement(patch, [1.0] * 2)
        train(config, workdir)
    return FirstUpdate(Workdir(workdir).load_config(), *steps[0].first)


def log_probabilities(params, model, batch, key=None):
    """`[B, T, V]` of the targets; with dropout if there is a key."""
    inputs, targets = batch["inputs"], batch["targets"]
    output = Transformer(model).apply(
        {"params": params},
        inputs,
        shift_right(targets, bos_id=2),
        inputs_lengths=jnp.sum(inputs != 0, axis=-1, dtype=jnp.int32),
        deterministic=key is None,
        rngs=None if key is None else {"dropout": key},
    )
    return jax.nn.log_softmax(output.logits)


def smoothed_losses(log_p, targets, eps):
    """`-(1 - eps) log p[target] - eps mean(log p)`, `[B, T]`."""
    chosen = jnp.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
    return -(1 - eps) * chosen - eps * log_p.mean(axis=-1)


def mean_loss(params, model, batch, key=None, eps=0.1):
    targets = batch["targets"]
    losses = smoothed_losses(log_probabilities(params, model, batch, key), targets, eps)
    return jnp.sum(losses * (targets != 0)) / jnp.sum(targets != 0)


@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_label_smoothing_is_that_of_the_loss(small_run, tmp_path, eps):
    found = first_update(small_run.config, tmp_path, training__label_smoothing=eps)
    expected = mean_loss(found.params, found.config.model, found.batch, eps=eps)
    np.testing.assert_allclose(found.loss, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["attention_dropout_rate", "activation_dropout_rate"])
def test_dropout_rates_reach_the_model(small_run, tmp_path, name):
    found = first_update(small_run.config, tmp_path, **{f"model__{name}": 0.2})
    model = found.config.model
    assert getattr(model, name) == 0.2 and model.dropout_rate == 0.0
    expected = mean_loss(found.params, model, found.batch, found.key)
    np.testing.assert_allclose(found.loss, expected, rtol=1e-5)
    assert abs(found.loss - mean_loss(found.params, model, found.batch)) > 1e-4


def test_r_drop_adds_the_divergence_of_two_passes(small_run, tmp_path):
    option = dict(training__r_drop_alpha=5.0, model__dropout_rate=0.1)
    found = first_update(small_run.config, tmp_path, **option)
    twice = {name: jnp.repeat(rows, 2, axis=0) for name, rows in found.batch.items()}
    log_p = log_probabilities(found.params, found.config.model, twice, found.key)
    losses = smoothed_losses(log_p, twice["targets"], 0.1)
    one, other = log_p[0::2], log_p[1::2]
    divergence = jnp.sum((jnp.exp(one) - jnp.exp(other)) * (one - other), axis=-1)
    losses = (losses[0::2] + losses[1::2]) / 2 + 5.0 / 4 * divergence
    real = found.batch["targets"] != 0
    np.testing.assert_allclose(found.loss, jnp.sum(losses * real) / real.sum(), rtol=1e-5)
    assert jnp.sum(divergence * real) / real.sum() > 1e-3


def test_muon_updates_the_matrices_of_layers_and_adam_the_rest(small_run, tmp_path):
    """Learning rate of the first of 20 warm-up updates: 1e-2 / 20."""
    found = first_update(small_run.config, tmp_path, optimizer__name="muon")
    gradient = jax.grad(mean_loss)(found.params, found.config.model, found.batch)

    def parts(tree):
        layer = tree["encoder"]["layer_0"]["feed_forward"]["inner"]
        return layer["kernel"], layer["bias"], tree["token_embedding"]["embedding"]

    kernel, *others = parts(gradient)
    muon = optax.contrib.scale_by_muon()
    direction = 0.2 * max(kernel.shape) ** 0.5 * muon.update(kernel, muon.init(kernel))[0]
    directions = [direction, *(g / (jnp.abs(g) + 1e-9) for g in others)]
    for old, new, step in zip(parts(found.params), parts(found.updated), directions, strict=True):
        sure = np.abs(step) > 0.9 if step is not direction else np.isfinite(step)
        np.testing.assert_allclose((old - new)[sure], 5e-4 * step[sure], atol=2e-6)


def test_sampled_segmentations_spell_the_sentences_of_the_corpus(small_run, tmp_path):
    found = first_update(small_run.config, tmp_path, tokenizer__sampling_rate=0.2)
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.model")
    corpus = set((small_run.corpus / "train.fr").read_text("utf-8").split("\n"))
    rows = [[i for i in row if i not in (0, 1)] for row in found.batch["targets"].tolist()]
    rows = [row for row in rows if row]
    texts = tokenizer.decode(rows)
    assert len(texts) > 20 and set(texts) <= corpus
    changed = sum(row != ids for row, ids in zip(rows, tokenizer.encode(texts), strict=True))
    assert changed > len(rows) / 4


def test_segmentations_are_sampled_by_the_workers_and_stay_the_same(
    small_run, tmp_path, monkeypatch
):
    started = []

    class Watched(pair_dataset.SamplingWorkers):
        def __init__(self, sampler, count):
            started.append(count)
            super().__init__(sampler, count)

    monkeypatch.setattr(pair_dataset, "SamplingWorkers", Watched)
    here, there = (
        first_losses(
            small_run.config,
            tmp_path / str(workers),
            tokenizer__sampling_rate=0.2,
            data__workers=workers,
        )
        for workers in (0, 1)
    )
    assert here == there
    assert started == [1]


def test_the_moving_average_follows_its_equation_and_is_what_translates(
    small_run, one_device, tmp_path, monkeypatch
):
    replace_measurement(monkeypatch, [1.0] * 2)
    config = change(small_run.config, training__num_steps=1, optimizer__ema_decay=0.9)
    train(config, tmp_path)
    run = prepare_run(config, tmp_path)
    before = run.program.first_state(jax.random.key(config.seed), run.mesh).params
    after, average = stored_params(tmp_path, 1), stored_params(tmp_path, 1, ema=True)
    d = 2 / 11  # (1 + n) / (10 + n) at the first update
    expected = jax.tree.map(lambda p, q: d * np.asarray(p) + (1 - d) * np.asarray(q), before, after)
    jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, atol=1e-6), average, expected)
    moved = [np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (after, average)),
                                                 strict=True)]  # fmt: skip
    assert max(moved) > 1e-5
    assert_same(average, jax.device_get(Translator.from_workdir(tmp_path).params))


def test_patience_ends_a_run_and_the_best_checkpoint_outlives_newer_ones(
    small_run, one_device, tmp_path, monkeypatch, capsys
):
    config = change(
        small_run.config,
        training__eval_every=2,
        training__save_every=2,
        training__keep_checkpoints=2,
        training__patience=3,
    )
    measured = replace_measurement(monkeypatch, [5.0, 9.0, 3.0, 8.0, 1.0, 40.0])
    result = train(config, tmp_path)
    assert result.step == 10
    assert result.reason == "3 evaluations without a better bleu (training.patience)"
    assert list_steps(tmp_path / "checkpoints") == [4, 8, 10]
    assert "bleu 9 on validation, step 4" in capsys.readouterr().out
    assert len(measured) == 6  # five validations, then the test split with the best checkpoint
    assert_same(jax.device_get(measured[-1]), stored_params(tmp_path, 4))
    assert result.evaluations["test"].scores.bleu == 40.0

    measured = replace_measurement(monkeypatch, [40.0])
    again = train(config, tmp_path)
    assert (again.step, again.reason) == (10, result.reason)
    assert len(measured) == 1


def test_max_seconds_ends_a_start_like_a_signal_and_each_start_gets_on(
    small_run, one_device, tmp_path, monkeypatch, capsys
):
    replace_measurement(monkeypatch, [1.0] * 10)
    config = change(small_run.config, training__max_seconds=1e-6)
    first = train(config, tmp_path)
    out = capsys.readouterr().out
    assert re.search(f"saved: step 1 in {tmp_path}\n.*the same command", out)
    assert first.evaluations == {} and "translate --workdir" not in out
    second = train(config, tmp_path)
    assert (first.step, second.step) == (1, 2)
    assert first.reason.startswith("training.max_seconds=1e-06 ") and first.exit_status == 0
    assert list_steps(tmp_path / "checkpoints") == [1, 2]


def test_a_run_tells_its_memory_and_speed_and_makes_a_profile(
    small_run, one_device, tmp_path, monkeypatch, capsys
):
    replace_measurement(monkeypatch, [1.0] * 2)
    config = change(
        small_run.config, training__num_steps=12, training__log_every=5, training__profile_steps=2
    )
    result = train(config, tmp_path)
    out = capsys.readouterr().out
    assert (result.step, result.exit_status) == (12, 0)
    assert [row["step"] for row in read_metrics(tmp_path, "train")] == [5, 10, 12]
    assert all(row["model_flops_per_second"] > 0 for row in read_metrics(tmp_path, "train"))
    assert out.count("memory    ") == 1 and f"profile   {tmp_path / 'profile'}" in out
    assert len(list((tmp_path / "profile").glob("plugins/profile/*/*.xplane.pb"))) == 1


def test_too_little_memory_ends_a_start_before_anything_is_made(
    small_run, one_device, tmp_path, monkeypatch
):
    monkeypatch.setattr("jaxformer.training.checks.memory.device_memory", lambda device: 1000)
    with pytest.raises(InputError, match="which has 0.0 MiB: .*lower data.max_length"):
        train(small_run.config, tmp_path)
    assert list_steps(tmp_path / "checkpoints") == []


def test_a_finished_run_only_reports(small_run, tmp_path, monkeypatch, capsys):
    workdir = tmp_path / "run"
    shutil.copytree(small_run.workdir, workdir)
    before = (workdir / "metrics.jsonl").read_text("utf-8").split("\n")
    best = read_metrics(workdir, "test")[0]["bleu"]
    result = train(small_run.config, workdir)
    assert (result.step, result.reason) == (120, "all 120 steps are done")
    assert result.evaluations["test"].scores.bleu == pytest.approx(best)
    assert list_steps(workdir / "checkpoints") == [20, 40, 60, 80, 100, 120]
    after = (workdir / "metrics.jsonl").read_text("utf-8").split("\n")
    assert len(after) == len(before) and after[:-2] == before[:-2]
    assert json.loads(after[-2])["split"] == "test"
    assert "done: 120 steps in" in capsys.readouterr().out


def test_data_without_validation_is_refused(small_run, tmp_path):
    write_pairs(tmp_path / "text", "train", [("one two", "un deux")] * 9)
    config = change(small_run.config, data__root=str(tmp_path / "text"))
    with pytest.raises(InputError, match=r"no validation split \(data.validation=''\).*has train"):
        train(config, tmp_path / "run")


def test_selection_counts_evaluations_since_the_best():
    selection = Selection()
    higher = [selection.update(v, step, higher=True) for step, v in enumerate([3.0, 3.0, 4.0], 1)]
    assert higher == [True, False, True]
    tie = Selection(best=4.0, best_step=3, waiting=1)
    assert not tie.update(4.0, 7, higher=True)
    assert (tie.best_step, tie.waiting) == (7, 2)
    assert (selection.best, selection.best_step, selection.waiting) == (4.0, 3, 0)
    assert selection.update(1.0, 4, higher=False)
    assert not selection.update(2.0, 5, higher=False)
    assert (selection.best_step, selection.waiting) == (4, 1)


def test_what_is_not_finite_is_never_the_best():
    selection = Selection()
    losses = [float("nan"), 4.0, float("nan"), float("inf"), 3.0]
    better = [selection.update(loss, step, higher=False) for step, loss in enumerate(losses)]
    assert better == [False, True, False, False, True]
    assert (selection.best, selection.best_step, selection.waiting) == (3.0, 4, 0)
