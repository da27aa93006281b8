"""A small run that tests share: number words, and a model that learns them fast."""

import dataclasses
import importlib
import itertools
import json
import os
import random
import sys
from pathlib import Path
from typing import NamedTuple

import jax
from absl import flags

from jaxformer.config import (
    Config,
    DataConfig,
    DecodingConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainingConfig,
)
from jaxformer.evaluation.bleu import CorpusScores
from jaxformer.evaluation.translations import TranslationEvaluation, TranslationEvaluator
from jaxformer.model_config import TransformerConfig
from jaxformer.parallel.mesh import make_mesh
from jaxformer.training.metrics import Progress

ENGLISH = "zero one two three four five six seven eight nine".split()
FRENCH = "zéro un deux trois quatre cinq six sept huit neuf".split()


def number_pairs(count, seed):
    """Sentences of two to five number words, English and French."""
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        digits = [draw.randrange(10) for _ in range(draw.randint(2, 5))]
        pairs.append((" ".join(ENGLISH[d] for d in digits), " ".join(FRENCH[d] for d in digits)))
    return pairs


def write_pairs(folder, stem, pairs, languages=("en", "fr")):
    """`stem.en` and `stem.fr` in `folder`, with LF line ends."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, lines in zip(languages, zip(*pairs, strict=True), strict=True):
        text = "".join(line + "\n" for line in lines)
        (folder / f"{stem}.{suffix}").write_bytes(text.encode())


def write_corpus(folder):
    """Train, validation and test files of number words; returns the folder."""
    for stem, count, seed in (("train", 400, 1), ("valid", 16, 2), ("test", 16, 3)):
        write_pairs(folder, stem, number_pairs(count, seed))
    return folder


def small_config(root, cache, **changes):
    """A run over the files in `root`; changes by dotted path with `__` for the dot."""
    config = Config(
        seed=3,
        model=TransformerConfig(
            num_encoder_layers=1, num_decoder_layers=1, d_model=32, d_ff=64, num_heads=2,
            dropout_rate=0.1,
        ),
        data=DataConfig(
            source="text", root=str(root), max_length=16, tokens_per_batch=1024, num_buckets=1,
            cache_dir=str(cache),
        ),
        tokenizer=TokenizerConfig(vocab_size=350),
        optimizer=OptimizerConfig(
            schedule="inverse_sqrt", learning_rate=1e-2, warmup_steps=20, clip_norm=1.0
        ),
        training=TrainingConfig(
            num_steps=120, log_every=20, eval_every=40, save_every=20, keep_checkpoints=6,
            num_samples=1,
        ),
        decoding=DecodingConfig(beam_size=3, max_length_extra=8),
    )  # fmt: skip
    return change(config, **changes)


def change(config, **changes):
    """`config` with fields replaced: `training__num_steps=4` sets `training.num_steps`."""
    for name, value in changes.items():
        section, _, field = name.partition("__")
        if field:
            value = dataclasses.replace(getattr(config, section), **{field: value})
        config = dataclasses.replace(config, **{section: value})
    return config


def read_metrics(workdir, split=None):
    """Lines of metrics.jsonl, of one split if it is named."""
    lines = Path(workdir, "metrics.jsonl").read_text("utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line]
    return [row for row in rows if split in (None, row["split"])]


class SmallRun(NamedTuple):
    """A trained run; tests that change it work on a copy."""

    config: Config
    workdir: Path
    corpus: Path


def write_config_file(path, root, cache, **changes):
    """A config file for `train.py --config=...` that returns `small_config(...)`."""
    path.write_text(
        "from training_run import small_config\n\n\n"
        "def get_config():\n"
        f"    config = small_config({str(root)!r}, {str(cache)!r}, **{changes!r})\n"
        "    return config.to_config_dict()\n"
    )
    return path


def send_signal_after(monkeypatch, steps, number):
    """Make the training loop receive a signal when it has done `steps` steps of a start."""
    advance, count = Progress.advance, itertools.count(1)

    def advance_and_signal(progress):
        advance(progress)
        if next(count) == steps:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Progress, "advance", advance_and_signal)


def replace_measurement(monkeypatch, bleu_of):
    """Evaluate without a model: call i scores `bleu_of[i]`; returns the list of measured params."""
    measured = []

    def measure(self, params, data, **settings):
        bleu = bleu_of[len(measured)]
        measured.append(params)
        scores = CorpusScores(
            bleu=bleu, bleu_signature="none", chrf=50.0, chrf_signature="none",
            precisions=(1.0,) * 4, brevity_penalty=1.0, hypothesis_length=1, reference_length=1,
        )  # fmt: skip
        return TranslationEvaluation(2.0, 7.4, 0.5, scores, ["un"] * len(data.pairs), 1.0)

    monkeypatch.setattr(TranslationEvaluator, "measure", measure)
    return measured


def use_devices(monkeypatch, count):
    """Let runs that start from here on see only `count` of the simulated devices."""
    seen = jax.devices()[:count]
    monkeypatch.setattr(
        "jaxformer.training.setup.make_mesh", lambda config, devices: make_mesh(config, seen)
    )


def call_train_script(monkeypatch, *arguments):
    """Run `python train.py ARGUMENTS` in this process; returns the exit status."""
    argv = ["train.py", *map(str, arguments)]
    monkeypatch.setattr(sys, "argv", argv)
    sys.modules.pop("config_config", None)  # the last config file
    for name in list(flags.FLAGS):  # flags are defined anew, as in a fresh process
        own = flags.FLAGS.find_module_defining_flag(name) == "train"
        if own or name.partition(".")[0] == "config":
            delattr(flags.FLAGS, name)
    try:
        script = importlib.import_module("train")
        script = importlib.reload(script) if "config" not in flags.FLAGS else script
        return script.main(script.parse_flags(argv))
    except SystemExit as ended:
        return ended.code
    finally:
        flags.FLAGS.unparse_flags()
