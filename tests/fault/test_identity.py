"""A resume refuses what would train something else, and a command another run's vocabulary."""

import json
import re
import shutil

import pytest
from training_run import (
    SmallRun,
    call_train_script,
    change,
    number_pairs,
    read_metrics,
    replace_measurement,
    small_config,
    use_devices,
    write_config_file,
    write_corpus,
)

from jaxformer.__main__ import main
from jaxformer.data.tokenizer_training import train_tokenizer
from jaxformer.errors import InputError
from jaxformer.storage.checkpoint import list_steps
from jaxformer.storage.identity import read_identity
from jaxformer.training.loop import train

pytestmark = pytest.mark.fault
SETTINGS = dict(
    training__num_steps=2, training__log_every=1, training__save_every=1, training__eval_every=100
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, compiled_programs):
    """A run of two steps on one device; tests that change it work on a copy."""
    root = tmp_path_factory.mktemp("identity")
    config = small_config(write_corpus(root / "corpus"), root / "cache", **SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        use_devices(patch, 1)
        replace_measurement(patch, [1.0] * 2)
        train(config, root / "run")
    return SmallRun(config, root / "run", root / "corpus")


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A copy of the run and of its corpus, on one device, its evaluations replaced."""
    use_devices(monkeypatch, 1)
    replace_measurement(monkeypatch, [1.0] * 9)
    shutil.copytree(trained.workdir, tmp_path / "run")
    shutil.copytree(trained.corpus, tmp_path / "corpus")
    config = change(trained.config, data__root=str(tmp_path / "corpus"))
    return SmallRun(config, tmp_path / "run", tmp_path / "corpus")


def contents(workdir):
    """Every file of a workdir with its bytes."""
    files = [path for path in workdir.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(workdir)): path.read_bytes() for path in files}


def assert_refused(run, config, *words, allow_changes=()):
    before = contents(run.workdir)
    with pytest.raises(InputError) as refused:
        train(config, run.workdir, allow_changes=allow_changes)
    for word in words:
        assert str(word) in str(refused.value)
    assert contents(run.workdir) == before


def append_pair(corpus, stem="train"):
    """One sentence pair more at the end of a text."""
    for suffix, word in (("en", "one nine"), ("fr", "un neuf")):
        with open(corpus / f"{stem}.{suffix}", "a") as file:
            file.write(f"{word}\n")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model__d_model": 64}, "  model.d_model: 32 -> 64\n"),
        ({"model__norm": "pre"}, "  model.norm: 'post' -> 'pre'\n"),
        ({"tokenizer__vocab_size": 351}, "  tokenizer.vocab_size: 350 -> 351\n"),
        ({"optimizer__name": "muon"}, "  optimizer.name: 'adam' -> 'muon'\n"),
        ({"optimizer__ema_decay": 0.9}, "  optimizer.ema_decay: 0.0 -> 0.9\n"),
    ],
)
def test_another_structure_is_refused_with_a_diff_whatever_is_allowed(run, changes, line):
    config = change(run.config, **changes)
    everything = ("model", "tokenizer", "optimizer")
    assert_refused(run, config, f"{run.workdir} ", line, "--workdir", allow_changes=everything)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"optimizer__learning_rate": 0.02}, "optimizer.learning_rate: 0.01 -> 0.02"),
        ({"optimizer__schedule": "constant"}, "optimizer.schedule: 'inverse_sqrt' -> 'constant'"),
        ({"optimizer__accumulation_steps": 2}, "optimizer.accumulation_steps: 1 -> 2"),
        ({"data__tokens_per_batch": 512}, "data.tokens_per_batch: 1024 -> 512"),
        ({"data__batching": "packed"}, "data.batching: 'buckets' -> 'packed'"),
        ({"model__dropout_rate": 0.2}, "model.dropout_rate: 0.1 -> 0.2"),
        ({"seed": 4}, "seed: 3 -> 4"),
    ],
)
def test_another_schedule_or_data_are_refused_with_the_flag_that_allows_them(run, changes, line):
    name = line.partition(":")[0]
    said = f"{run.workdir} ", "step 2", f"\n  {line}\n", f"--allow_changes={name}"
    config = change(run.config, **changes, training__num_steps=9)
    assert_refused(run, config, *said)
    other = "optimizer" if not name.startswith("optimizer") else "data"
    assert_refused(run, config, *said, allow_changes=[other])


@pytest.mark.parametrize("stem", ["train", "valid"])
def test_another_text_is_refused(run, stem):
    append_pair(run.corpus, stem)
    name = "data.train_text" if stem == "train" else "data.validation_text"
    before = read_identity(run.workdir / "checkpoints" / "2").corpus[name[5:-5]]
    assert_refused(run, run.config, f"  {name}: '{before}' -> '", f"--allow_changes={name}")


def test_the_same_text_elsewhere_is_the_same(run, trained, capsys):
    assert run.config.data.root != trained.config.data.root
    result = train(change(run.config, training__num_steps=3), run.workdir)
    assert (result.step, result.exit_status) == (3, 0)
    out = capsys.readouterr().out
    assert re.search("changed .*: data.root: ", out)
    assert re.search("changed .*: training.num_steps: 2 -> 3", out)
    assert "bit-identical" not in out
    (row,) = read_metrics(run.workdir, "resume")
    assert row["step"] == 2 and row["bit_identical"] is True
    assert row["changes"]["training.num_steps"] == [2, 3]


def test_allowed_changes_are_logged_and_belong_to_the_run_from_then_on(run, capsys):
    append_pair(run.corpus)
    config = change(run.config, optimizer__learning_rate=0.02, training__num_steps=3)
    result = train(config, run.workdir, allow_changes=["optimizer.learning_rate", "data"])
    assert (result.step, result.exit_status) == (3, 0)
    assert re.search("changed .*: optimizer.learning_rate: 0.01 -> 0.02", capsys.readouterr().out)
    (row,) = read_metrics(run.workdir, "resume")
    assert (row["step"], row["bit_identical"]) == (2, False)
    assert row["changes"]["optimizer.learning_rate"] == [0.01, 0.02]
    old, new = (read_identity(run.workdir / "checkpoints" / step) for step in "23")
    assert row["changes"]["data.train_text"] == [old.corpus["train"], new.corpus["train"]]
    assert new.config.optimizer.learning_rate == 0.02
    again = train(config, run.workdir)
    assert (again.step, again.reason) == (3, "all 3 steps are done")
    assert len(read_metrics(run.workdir, "resume")) == 1
    assert_refused(run, change(config, optimizer__learning_rate=0.01), "0.02 -> 0.01")


def test_a_change_is_judged_by_the_checkpoint_that_is_restored(run):
    """The run went on with another rate, and the newest checkpoint, which says so, is damaged."""
    config = change(run.config, optimizer__learning_rate=0.02, training__num_steps=3)
    train(config, run.workdir, allow_changes=["optimizer"])
    params = run.workdir / "checkpoints" / "3" / "params"
    largest = max((p for p in params.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"(?s)from step 2, .*learning_rate: 0.01 -> 0.02"):
        train(config, run.workdir)
    assert train(config, run.workdir, allow_changes=["optimizer"]).step == 3


def test_another_version_is_logged(run, monkeypatch, capsys):
    describe = "jaxformer.storage.identity.describe_versions"
    versions = read_identity(run.workdir / "checkpoints" / "2").versions
    monkeypatch.setattr(describe, lambda mesh: versions | {"jaxlib": "0.0.1"})
    train(change(run.config, training__num_steps=3), run.workdir)
    out = capsys.readouterr().out
    assert re.search(f"changed .*: versions.jaxlib: '{versions['jaxlib']}' -> '0.0.1'", out)
    assert re.search("not bit-identical .*: versions.jaxlib", out)
    assert read_metrics(run.workdir, "resume")[0]["bit_identical"] is False


def test_the_command_line(run, monkeypatch, capsys, tmp_path):
    cache = run.config.data.cache_dir
    file = write_config_file(tmp_path / "c.py", run.corpus, cache, **SETTINGS)
    command = [f"--config={file}", f"--workdir={run.workdir}", "--config.training.num_steps=3",
               "--config.optimizer.learning_rate=0.02"]  # fmt: skip
    assert call_train_script(monkeypatch, *command) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and "--allow_changes=optimizer.learning_rate\n" in err
    assert call_train_script(monkeypatch, *command, "--allow_changes=optimizer.learning_rat") == 2
    assert "nearest: optimizer.learning_rate\n" in capsys.readouterr().err
    assert list_steps(run.workdir / "checkpoints") == [1, 2]
    assert call_train_script(monkeypatch, *command, "--allow_changes=seed,optimizer") == 0
    assert list_steps(run.workdir / "checkpoints") == [1, 2, 3]


@pytest.fixture(scope="module")
def vocabulary():
    """Another vocabulary of as many pieces, from other text."""
    lines = [line.upper() for pair in number_pairs(400, 9) for line in pair]
    return train_tokenizer(lines, small_config("a", "b").tokenizer, progress=False)


def test_another_vocabulary_is_refused_by_training_and_by_every_command(run, vocabulary, capsys):
    average = ["average", f"--workdir={run.workdir}", "--last=2"]
    assert main(average) == 0
    meta = json.loads((run.workdir / "checkpoints/average_last_2/meta/metadata").read_text())
    newest = read_identity(run.workdir / "checkpoints" / "2")
    assert meta["identity"]["tokenizers"] == list(newest.tokenizers)

    vocabulary.save(run.workdir / "tokenizer.model")
    file = f"{run.workdir}/tokenizer.model "
    assert_refused(run, run.config, file, vocabulary.fingerprint, newest.tokenizers[0])
    capsys.readouterr()
    commands = [average]
    for checkpoint in ("best", "1", "average_last_2"):
        where = [f"--workdir={run.workdir}", f"--checkpoint={checkpoint}"]
        commands += [["evaluate", *where], ["translate", *where, f"--input={__file__}"]]
    for command in commands:
        assert main(command) == 2
        printed = capsys.readouterr()
        assert printed.err.startswith(f"error: {file}") and printed.out == ""


def test_a_lost_vocabulary_is_not_replaced_by_another(run):
    """Another text makes another vocabulary: what is trained anew has to be the same."""
    (run.workdir / "tokenizer.model").unlink()
    append_pair(run.corpus)
    for suffix in ("en", "fr"):
        path = run.corpus / f"train.{suffix}"
        path.write_text(path.read_text().upper())
    with pytest.raises(InputError, match=f"{run.workdir}/tokenizer.model .*vocabulary"):
        train(run.config, run.workdir, allow_changes=["data", "tokenizer"])


def test_another_configuration_is_refused_by_every_command(run, capsys):
    file = run.workdir / "config.json"
    file.write_text(file.read_text().replace('"norm": "post"', '"norm": "pre"'))
    for command in (["evaluate"], ["translate", f"--input={__file__}"], ["average", "--last=1"]):
        assert main([command[0], f"--workdir={run.workdir}", *command[1:]]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"error: {file} ")
        assert "  model.norm: 'post' -> 'pre'\n" in err
