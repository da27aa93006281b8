"""Kill a run repeatedly: python benchmarks/soak.py [--kills=200] [--seed=0].

A small run is trained once without interruption. It is trained again while SIGKILL ends it at
random moments (during start-up, between two steps, during an asynchronous save) and the same
command restarts it. In the end the SHA-256 of the parameters and the logged metrics of every step
must be the same, and each start must have resumed from the newest complete checkpoint.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = (str(ROOT / "train.py"),)
SAVE_EVERY = 5
KINDS = ("start-up", "step", "step", "save", "save")
WORDS = (
    "zero one two three four five six seven eight nine".split(),
    "zéro un deux trois quatre cinq six sept huit neuf".split(),
)
SETTINGS = {
    "data.source": "text", "data.max_length": 16, "data.tokens_per_batch": 512,
    "data.num_buckets": 2, "tokenizer.vocab_size": 350, "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1, "model.d_model": 32, "model.d_ff": 64, "model.num_heads": 2,
    "training.log_every": 1, "training.save_every": SAVE_EVERY, "training.eval_every": 50,
    "training.eval_sentences": 4, "training.keep_checkpoints": 2, "decoding.max_length_extra": 8,
}  # fmt: skip
LONGEST_WAIT = 1800.0  # seconds for a start to reach an expected state


@dataclasses.dataclass(frozen=True)
class Kill:
    """One kill, and how the next start resumed.

    Attributes:
      phase: `start-up`, `save` (one was being written) or `step`.
      reached: the last step logged by this start, 0 if none.
      complete: step of the newest complete checkpoint on disk, 0 if there was none.
      resumed: step from which the next start resumed; None: not yet known.
    """

    phase: str
    reached: int
    complete: int
    resumed: int | None = None

    @property
    def repeated(self) -> int:
        """Logged steps that the next start repeated."""
        return max(self.reached - (self.resumed or 0), 0)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The kills; the digests of the killed and the uninterrupted run; their figures."""

    kills: list[Kill]
    digests: tuple[str, str]
    figures: tuple[list, list]


class Start:
    """One process of a run; its output is read as it comes.

    Attributes:
      lines: of its output so far.
      reached: the last step it has logged, 0 before.
      resumed: the step it resumed from, 0 for a new run; None until it is logged.
    """

    def __init__(self, command: list[str], environment: dict[str, str]):
        self.began = time.monotonic()
        self.lines: list[str] = []
        self.reached, self.resumed = 0, None
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.match(r"step ([\d,]+)/", line):
                self.reached = int(found[1].replace(",", ""))
                self.resumed = self.resumed or 0
            elif found := re.match(r"resuming from the checkpoint of step ([\d,]+) ", line):
                self.resumed = int(found[1].replace(",", ""))

    def wait_for(self, condition: Callable[[], object]) -> bool:
        """Whether the condition holds before the process ends."""
        deadline = time.monotonic() + LONGEST_WAIT
        while not condition():
            if self.process.poll() is not None:
                self._reader.join()
                return bool(condition())
            if time.monotonic() > deadline:
                self.process.kill()
                raise TimeoutError(f"a start did not reach the expected state:\n{self.output}")
            time.sleep(0.002)
        return True

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()

    def finish(self, *expected: int) -> int:
        """Wait for the exit status; `RuntimeError` if it is none of those expected."""
        self.wait_for(lambda: False)
        status = self.process.wait()
        if expected and status not in expected:
            raise RuntimeError(f"a start ended with status {status}:\n{self.output}")
        return status

    @property
    def output(self) -> str:
        return "".join(self.lines)


class Soak:
    """Two runs in a folder: `whole` and `killed`.

    Args:
      folder: empty.
      kills: how many.
      seed: of the choice of moments.
      say: called with progress messages.
    """

    def __init__(self, folder: Path, *, kills: int, seed: int, say: Callable[[str], None] = print):
        self._folder, self._kills, self._say = folder, kills, say
        self._random = random.Random(seed)
        self._start_up = 0.0  # seconds to the first step
        self.num_steps = 2 * SAVE_EVERY * kills
        write_corpus(folder / "corpus")
        settings = SETTINGS | {"data.root": folder / "corpus", "training.num_steps": self.num_steps}
        self._flags = [f"--config.{name}={value}" for name, value in settings.items()]
        caches = {"JAXFORMER_CACHE": folder / "cache", "JAX_COMPILATION_CACHE_DIR": folder / "xla"}
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            **{name: str(path) for name, path in caches.items()},
        }

    def run(self) -> Outcome:
        """Train both runs to the end.

        Raises:
          RuntimeError: a start failed without being killed.
        """
        whole, killed = self._folder / "whole", self._folder / "killed"
        self.start(whole).finish(0)
        start = self.start(killed)  # once more, now that everything is compiled
        if start.wait_for(lambda: start.reached):
            self._start_up = time.monotonic() - start.began
        deaths: list[Kill] = []
        while len(deaths) < self._kills:
            if not self._await_moment(start, killed):
                break
            start.kill()
            deaths = settled(deaths, start.resumed)
            deaths.append(look(killed, start))
            self._say(f"kill {len(deaths)}: {deaths[-1]}")
            start = self.start(killed)
        start.finish(0)
        deaths = settled(deaths, start.resumed)
        runs = killed, whole
        return Outcome(deaths, tuple(map(digest, runs)), tuple(map(logged_figures, runs)))

    def start(self, workdir: Path, *flags: str, program: Sequence[str] = PROGRAM) -> Start:
        """One process of the run in `workdir`."""
        command = [sys.executable, *program, *self._flags, f"--workdir={workdir}", *flags]
        return Start(command, self.environment)

    def _await_moment(self, start: Start, workdir: Path) -> bool:
        """Wait for a random moment; False if the run ended before."""
        kind = self._random.choice(KINDS)
        if kind == "start-up":
            moment = start.began + self._random.uniform(0.0, self._start_up)
            return start.wait_for(lambda: time.monotonic() >= moment)
        start.wait_for(lambda: start.resumed is not None)
        # A save ends before the next one begins: from its tenth step on a start leaves a newer one.
        step = (start.resumed or 0) + self._random.randint(1, 4 * SAVE_EVERY)
        found = start.wait_for(lambda: start.reached >= step)
        if kind == "save":
            return start.wait_for(lambda: is_saving(workdir))
        time.sleep(self._random.uniform(0.0, 0.02))
        return found


def write_corpus(folder: Path) -> None:
    """Sentences of number words."""
    folder.mkdir()
    draw = random.Random(1)
    for stem, count in (("train", 400), ("valid", 8), ("test", 8)):
        rows = [[draw.randrange(10) for _ in range(draw.randint(2, 9))] for _ in range(count)]
        for language, words in zip(("en", "fr"), WORDS, strict=True):
            lines = "".join(" ".join(words[digit] for digit in row) + "\n" for row in rows)
            (folder / f"{stem}.{language}").write_bytes(lines.encode())


def is_saving(workdir: Path) -> bool:
    """Whether a checkpoint is being written."""
    from jaxformer.storage.steps import list_steps, step_folders

    folder = workdir / "checkpoints"
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return any(".orbax-checkpoint-tmp" in name for name in names) or (
        list_steps(folder) != step_folders(folder)
    )


def look(workdir: Path, start: Start) -> Kill:
    """What a killed start leaves."""
    from jaxformer.storage.steps import list_steps

    phase = "start-up" if not start.reached else "save" if is_saving(workdir) else "step"
    return Kill(phase, start.reached, max(list_steps(workdir / "checkpoints"), default=0))


def settled(kills: list[Kill], resumed: int | None) -> list[Kill]:
    """The kills, updated with the step that a start resumed from; None: it never resumed."""
    return [
        dataclasses.replace(kill, resumed=resumed) if kill.resumed is None else kill
        for kill in kills
    ]


def digest(workdir: Path) -> str:
    """SHA-256 of all parameters of the newest checkpoint, in the order of their paths."""
    import jax
    import numpy as np

    from jaxformer.decoding.translator import abstract_params
    from jaxformer.models.transformer import Transformer
    from jaxformer.storage.checkpoint import list_steps, load_params
    from jaxformer.storage.workdir import Workdir

    model = Transformer(Workdir(workdir).load_config().model)
    folder = workdir / "checkpoints"
    params = load_params(folder / str(list_steps(folder)[-1]), abstract_params(model), ema=False)
    sha = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        sha.update(f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}".encode())
        sha.update(np.ascontiguousarray(leaf).tobytes())
    return sha.hexdigest()


def logged_figures(workdir: Path) -> list[tuple]:
    """(step, loss, gradient norm) of each step, as metrics.jsonl has them."""
    rows = map(json.loads, (workdir / "metrics.jsonl").read_text("utf-8").split("\n")[:-1])
    names = "step", "loss", "gradient_norm"
    return [tuple(row[name] for name in names) for row in rows if row["split"] == "train"]


def report(outcome: Outcome) -> str:
    """The outcome as text; its last line begins with `equal` or `DIFFERENT`."""
    kills, (killed, whole) = outcome.kills, outcome.digests
    phases = sorted(collections.Counter(kill.phase for kill in kills).items())
    lines = [f"{len(kills)} kills: " + ", ".join(f"{count} in {name}" for name, count in phases)]
    repeated = [kill.repeated for kill in kills]
    lines.append(
        f"steps repeated: {sum(repeated)} in all, at most {max(repeated, default=0)} after a kill; "
        f"a checkpoint every {SAVE_EVERY}"
    )
    wrong = [kill for kill in kills if kill.resumed != kill.complete]
    lines.append(f"starts that did not resume from the newest complete checkpoint: {len(wrong)}")
    same = outcome.figures[0] == outcome.figures[1]
    lines.append(f"figures of {len(outcome.figures[1])} steps {'equal' if same else 'DIFFERENT'}")
    lines += [f"SHA-256 killed         {killed}", f"SHA-256 uninterrupted  {whole}"]
    lines.append("equal" if killed == whole and same and not wrong else "DIFFERENT")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # of this process; the runs inherit it
    sys.path.insert(0, str(ROOT))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        text = report(Soak(Path(folder), kills=args.kills, seed=args.seed).run())
    print(f"{time.monotonic() - began:.0f} s, {text}")
    return 0 if text.endswith("\nequal") else 1


if __name__ == "__main__":
    sys.exit(main())
