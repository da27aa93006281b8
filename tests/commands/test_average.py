"""`python -m jaxformer average`: one checkpoint of the last or the best, by name ready to use."""

import json
import shutil

import jax
import numpy as np
import pytest
from training_run import read_metrics

from jaxformer.__main__ import main
from jaxformer.decoding.translator import abstract_params
from jaxformer.models.transformer import Transformer
from jaxformer.storage.checkpoint import load_params
from jaxformer.storage.workdir import Workdir


@pytest.fixture(scope="module")
def workdir(small_run, tmp_path_factory):
    """A copy of the small run, to be changed."""
    return shutil.copytree(small_run.workdir, tmp_path_factory.mktemp("average") / "run")


def test_the_last_ones(workdir, capsys):
    assert main(["average", f"--workdir={workdir}", "--last=3"]) == 0
    done, following = capsys.readouterr().out.splitlines()
    assert " 80, 100, 120 " in done and done.endswith(f"{workdir}/checkpoints/average_last_3")
    command = f"python -m jaxformer evaluate --workdir={workdir} --checkpoint=average_last_3"
    assert following.endswith(command)
    abstract = abstract_params(Transformer(Workdir(workdir).load_config().model))
    names = ("80", "100", "120", "average_last_3")
    *steps, average = (load_params(workdir / "checkpoints" / name, abstract) for name in names)
    jax.tree.map(
        lambda found, *parts: np.testing.assert_allclose(
            found, np.mean(np.stack(parts, dtype=np.float64), axis=0), rtol=1e-6, atol=1e-9
        ),
        average,
        *steps,
    )


def test_the_best_ones_and_their_use(workdir, tmp_path, capsys):
    assert main(["average", f"--workdir={workdir}", "--best=2"]) == 0
    ranked = sorted(read_metrics(workdir, "validation"), key=lambda r: (r["bleu"], r["step"]))
    steps = ", ".join(str(step) for step in sorted(row["step"] for row in ranked[-2:]))
    assert f"averaged steps {steps} into " in capsys.readouterr().out
    flags = [f"--workdir={workdir}", "--checkpoint=average_best_2"]
    assert main(["evaluate", *flags, "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] < 3.0
    (tmp_path / "in").write_text("one two\n")
    assert main(["translate", *flags, f"--input={tmp_path / 'in'}"]) == 0
    assert capsys.readouterr().out.strip()


def test_verify_sees_what_an_average_has_lost_and_accepts_only_whole_ones(workdir, capsys):
    run, checkpoints = f"--workdir={workdir}", workdir / "checkpoints"
    assert main(["average", run, "--last=2"]) == 0
    assert main(["verify", run]) == 0
    assert "average_last_2: good, " in capsys.readouterr().out
    folder = checkpoints / "average_last_2"
    (folder / "params").rename(folder / "elsewhere")
    assert main(["verify", run]) == 2
    assert "average_last_2: DAMAGED: params/" in capsys.readouterr().out
    (folder / "elsewhere").rename(folder / "params")
    (folder / "MANIFEST.json").unlink()
    (folder / "steps.txt").rename(folder / "elsewhere")  # killed before the last file
    assert main(["verify", run, "--accept"]) == 2
    assert "average_last_2: DAMAGED: MANIFEST.json: missing" in capsys.readouterr().out
    (folder / "elsewhere").rename(folder / "steps.txt")
    assert main(["verify", run, "--accept"]) == 0
    assert "average_last_2: accepted" in capsys.readouterr().out
    (checkpoints / "120" / "MANIFEST.json").unlink()
    (checkpoints / "120.saving").write_text("")  # a save that was cut short
    assert main(["verify", run, "--accept"]) == 2
    assert "120: DAMAGED: MANIFEST.json: missing" in capsys.readouterr().out
