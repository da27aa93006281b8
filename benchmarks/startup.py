"""Time to the first step, cold and warm: python benchmarks/startup.py [CONFIG_FILE].

Each start is a separate process that trains one step in an empty workdir. The cold one has an empty
cache folder, the warm one the cold one's cache: the tokenised corpus and the compiled programs.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
POCKET = ROOT / "configs" / "pocket.py"
STAGES = ("imports", "tokenizer", "corpus", "set-up", "compiling", "state", "first step")


class Stopwatch:
    """Wall seconds of each stage since the process was started."""

    def __init__(self, started: float):
        self._last = started
        self.seconds = dict.fromkeys(STAGES, 0.0)

    def lap(self, stage: str) -> None:
        """Book what has passed since the last lap on `stage`."""
        now = time.time()
        self.seconds[stage] += now - self._last
        self._last = now

    def watch(self, module, name: str, stage: str) -> None:
        """Book the calls of a function on `stage`, and what passes before them on the set-up."""
        function = getattr(module, name)

        def timed(*arguments, **options):
            self.lap("set-up")
            result = function(*arguments, **options)
            self.lap(stage)
            return result

        setattr(module, name, timed)


def start_training(config_file: str, workdir: str, started: float) -> None:
    """Train until the loss of the first step is known, print the stages as JSON, and end."""
    sys.path.insert(0, str(ROOT))
    watch = Stopwatch(started)

    from jaxformer.config import Config
    from jaxformer.runtime.backend import configure_backend
    from jaxformer.tasks import translation
    from jaxformer.training import loop, recorder

    values = runpy.run_path(config_file)["get_config"]().to_dict()
    values["training"]["save_every"] = 1  # before it saves, the loop waits for the step
    configure_backend()

    import jax

    watch.lap("imports")
    watch.watch(translation, "load_or_train", "tokenizer")
    watch.watch(translation, "prepare_corpus", "corpus")
    watch.watch(loop, "check_memory", "compiling")
    watch.watch(loop, "restore_or_create", "state")

    def end(self, step, state):
        jax.block_until_ready(state)
        watch.lap("first step")
        print(json.dumps(watch.seconds), flush=True)
        os._exit(0)

    recorder.Recorder.settle = end
    loop.train(Config.from_dict(values), workdir)


def measure(config_file: str, folder: Path, name: str) -> dict[str, float]:
    """Stages of a start in the new workdir `folder/name`, with the cache `folder/cache`."""
    started = subprocess.run(
        [sys.executable, __file__, config_file, str(folder / name), str(time.time())],
        env={**os.environ, "JAXFORMER_CACHE": str(folder / "cache")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(started.stdout.split("\n")[-2])


def main(config_file: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        starts = {name: measure(config_file, Path(folder), name) for name in ("cold", "warm")}
    print(f"{'seconds':<12}" + "".join(f"{name:>8}" for name in starts))
    for stage in STAGES:
        print(f"{stage:<12}" + "".join(f"{start[stage]:>8.1f}" for start in starts.values()))
    totals = [sum(start.values()) for start in starts.values()]
    print(f"{'total':<12}" + "".join(f"{total:>8.1f}" for total in totals))


if __name__ == "__main__":
    if len(sys.argv) == 4:
        start_training(sys.argv[1], sys.argv[2], float(sys.argv[3]))
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else str(POCKET))
