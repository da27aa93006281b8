"""Each file of configs/: it describes itself, resolves, and its run takes two steps, shrunk."""

import ast
import dataclasses
import re
import runpy
from pathlib import Path

import pytest
from training_run import (
    call_train_script,
    number_pairs,
    read_metrics,
    replace_measurement,
    write_pairs,
)

from jaxformer.config import Config
from jaxformer.storage.checkpoint import list_steps
from jaxformer.training.loop import train

FILES = sorted(Path(__file__).parent.parent.joinpath("configs").glob("*.py"))
NAMES = [path.stem for path in FILES]


def load(path):
    return Config.from_dict(runpy.run_path(str(path))["get_config"]().to_dict())


def test_the_runs_that_are_promised_are_there():
    promised = {
        "pocket", "multi30k_tiny", "iwslt14_de_en", "ted_pt_en", "wmt14_en_de_base",
        "wmt14_en_de_big", "wmt14_en_fr_big",
    }  # fmt: skip
    assert promised <= set(NAMES)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_the_docstring_names_command_and_hardware(path):
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    own = "" if path.stem == "pocket" else rf" --config=configs/{path.name}\b"
    assert re.search(rf"^Command: +python train\.py{own}", docstring, re.MULTILINE)
    assert re.search(r"^Hardware: +\S", docstring, re.MULTILINE)


def test_derived_configurations_change_what_they_say():
    configs = dict(zip(NAMES, map(load, FILES), strict=True))
    base, big = configs["wmt14_en_de_base"], configs["wmt14_en_de_big"]
    french = configs["wmt14_en_fr_big"]
    assert (base.model.d_model, base.model.d_ff, base.model.num_heads) == (512, 2048, 8)
    assert (big.model.d_model, big.model.d_ff, big.model.num_heads) == (1024, 4096, 16)
    assert (big.model.dropout_rate, french.model.dropout_rate) == (0.3, 0.1)
    assert (big.data, big.training.num_steps) == (base.data, 300_000)
    assert french.data.name == "wmt14_translate/fr-en"
    assert french.model == dataclasses.replace(big.model, dropout_rate=0.1)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_the_command_line_accepts_it(path, monkeypatch):
    seen = []

    class Ended:
        exit_status = 0

    monkeypatch.setattr("jaxformer.training.loop.train", lambda *a, **_: seen.append(a) or Ended)
    assert call_train_script(monkeypatch, f"--config={path}", "--config.seed=7") == 0
    assert seen == [(dataclasses.replace(load(path), seed=7), Path("runs") / path.stem)]


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_two_steps_of_the_shrunk_run(path, tmp_path, monkeypatch, one_device, compiled_programs):
    full = load(path)
    languages = (full.data.source_language, full.data.target_language)
    for stem, seed in (("train", 1), ("valid", 2)):
        write_pairs(tmp_path, stem, number_pairs(120, seed), languages)
    config = dataclasses.replace(
        full,
        model=dataclasses.replace(
            full.model, num_encoder_layers=1, num_decoder_layers=1, d_model=16, d_ff=32,
            num_heads=2,
        ),
        data=dataclasses.replace(
            full.data, source="text", root=str(tmp_path), train="train", validation="", test="",
            max_length=32, tokens_per_batch=512, num_buckets=1, cache_dir=str(tmp_path / "cache"),
        ),
        tokenizer=dataclasses.replace(full.tokenizer, vocab_size=310),
        training=dataclasses.replace(full.training, num_steps=2, log_every=1),
    )  # fmt: skip
    measured = replace_measurement(monkeypatch, [1.0] * 2)
    result = train(config, tmp_path / "run")
    assert (result.step, result.exit_status, len(measured)) == (2, 0, 1)
    losses = [row["loss"] for row in read_metrics(tmp_path / "run", "train")]
    assert len(losses) == 2 and all(4.0 < loss < 9.0 for loss in losses)
    assert list_steps(tmp_path / "run" / "checkpoints") == [2]
