"""Speed and memory of the batches: python benchmarks/input_pipeline.py [--root=multi30k].

Tokenises the built-in corpus, and parallel text in `--root`, with a joint vocabulary each, and
times their batches: made on one core, and through `BatchLoader`.

`--sampling=0.1` instead times `BatchLoader` with segmentations sampled at that rate, in this
process and in 1 and 2 worker processes, on all cores.

`--simulate 1_000_000 100_000_000` instead writes corpora of these sizes chunk by chunk to a
temporary folder, plans each in a separate process, delivers a few thousand batches around a window
boundary and shows the peak memory. Lengths are drawn; the ids are holes in sparse files, so that
100 million pairs take 1.6 GB of disk. Memory is read from /proc (Linux).

Seconds are wall time and (in brackets) CPU time of all threads. Everything is pinned to one core,
so they agree on an idle machine; on a busy one compare the CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from process_memory import process_memory
from tables import markdown_table

sys.path.insert(0, str(Path(__file__).parents[1]))

from jaxformer.config import DataConfig, TokenizerConfig
from jaxformer.data.batching import Plan
from jaxformer.data.corpus import ARRAYS, CorpusReport, TokenizedCorpus, prepare_corpus
from jaxformer.data.corpus_cache import ArrayWriter
from jaxformer.data.loader import BatchLoader
from jaxformer.data.pair_dataset import PairDataset, make_batch, make_plan
from jaxformer.data.sources import make_source
from jaxformer.data.subword_sampling import SubwordSampler
from jaxformer.data.tokenizer_training import train_tokenizer
from jaxformer.data.tokenizers import Tokenizer

BATCHINGS = ("buckets", "packed")
ROW_MULTIPLE = 8
WORKERS = (0, 1, 2)
CHUNK_PAIRS = 1 << 20  # simulated at once
MEAN_LENGTH, LENGTH_SHAPE = 26.0, 2.0  # source tokens: WMT's mean, a gamma distribution's tail
MIB = 2**20
DISK_LEFT = 2 << 30  # bytes that a simulation leaves free


def pin_to_one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])


class Stopwatch:
    """Wall and CPU seconds."""

    def __enter__(self) -> Stopwatch:
        self._start = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.perf_counter() - self._start[0]
        self.cpu = time.process_time() - self._start[1]

    def seconds(self) -> str:
        return f"{self.wall:.2f} ({self.cpu:.2f})"

    def rate(self, pairs: int) -> str:
        return f"{pairs / self.wall:,.0f} ({pairs / self.cpu:,.0f})"


def deliver(corpus: TokenizedCorpus, plan: Plan, steps: range) -> None:
    for step in steps:
        make_batch(corpus, plan, step, slice(None), 0)


def count_pairs(plan: Plan, steps: range) -> int:
    return sum(len(plan.layout(step, slice(None)).pairs) for step in steps)


def time_loader(corpus: TokenizedCorpus, plan: Plan) -> Stopwatch:
    """Two epochs through the loader, its reading thread included."""
    loader = BatchLoader(PairDataset(corpus, plan, 0))
    next(loader)
    with Stopwatch() as watch:
        for _ in range(2 * plan.steps_per_epoch):
            next(loader)
    loader.close()
    return watch


def tokenise(config: DataConfig, vocab_size: int) -> tuple[TokenizedCorpus, Tokenizer, Stopwatch]:
    """The training pairs, the joint tokenizer trained on them, and the time it took."""
    source = make_source(config, 0)
    lines = (line for pair in source.pairs("train") for line in pair)
    tokenizer = train_tokenizer(lines, TokenizerConfig(vocab_size=vocab_size), progress=False)
    with Stopwatch() as tokenising:
        corpus = prepare_corpus(
            source, "train", tokenizer, tokenizer, config, filters=True, progress=False
        )
    return corpus, tokenizer, tokenising


def measure_corpus(title: str, config: DataConfig, vocab_size: int) -> list[dict[str, str]]:
    """A line of the table for each way of batching."""
    corpus, _, tokenising = tokenise(config, vocab_size)
    tokens = corpus.source_lengths.mean() + corpus.target_lengths.mean()
    rows = []
    for batching in BATCHINGS:
        settings = DataConfig(batching=batching)
        with Stopwatch() as planning:
            plan = make_plan(corpus, settings, seed=0, row_multiple=ROW_MULTIPLE, shuffle=True)
        for epoch in (0, 1):
            plan.layout(epoch * plan.steps_per_epoch, slice(0, 1))  # draws its order, once
        with Stopwatch() as alone:
            deliver(corpus, plan, range(2 * plan.steps_per_epoch))
        rows.append(
            {
                "corpus, batching": f"{title}, {batching}",
                "pairs": f"{len(corpus):,}",
                "tokens a pair": f"{tokens:.1f}",
                "tokenise, pairs/s": tokenising.rate(len(corpus)),
                "plan, s": planning.seconds(),
                "make_batch, pairs/s": alone.rate(2 * len(corpus)),
                "BatchLoader, pairs/s": time_loader(corpus, plan).rate(2 * len(corpus)),
            }
        )
    return rows


def measure_sampling(
    title: str, config: DataConfig, vocab_size: int, rate: float
) -> list[dict[str, str]]:
    """A line for each number of workers: the second epoch of newly segmented sentences."""
    corpus, tokenizer, _ = tokenise(config, vocab_size)
    sampler = SubwordSampler(corpus, (tokenizer, tokenizer), rate, config, 0)
    plan = make_plan(
        corpus, config, seed=0, row_multiple=ROW_MULTIPLE, shuffle=True, sampler=sampler
    )
    rows = []
    for workers in WORKERS:
        with closing(
            BatchLoader(PairDataset(corpus, plan, 0, sampler=sampler, workers=workers))
        ) as loader:
            for _ in range(plan.steps_per_epoch):  # what splits each word is found once
                next(loader)
            start = time.perf_counter()
            for _ in range(plan.steps_per_epoch):
                next(loader)
            seconds = time.perf_counter() - start
        rows.append(
            {
                "corpus": title,
                "pairs": f"{len(corpus):,}",
                "sampled at": f"{rate:g}",
                "in": {0: "a thread", 1: "1 worker"}.get(workers, f"{workers} workers"),
                "BatchLoader, pairs/s": f"{len(corpus) / seconds:,.0f}",
            }
        )
    return rows


def measure_real(root: str, folder: Path, sampling: float) -> list[dict[str, str]]:
    """The lines of the built-in corpus and, if there is a `root`, of the text in it."""
    cache = str(folder)
    corpora = [("built-in", DataConfig(cache_dir=cache), 1500)]
    if root:
        config = DataConfig(
            source="text", root=root, source_language="en", target_language="de", cache_dir=cache
        )
        corpora.append((Path(root).name, config, 10_000))
    if sampling:
        return [row for corpus in corpora for row in measure_sampling(*corpus, sampling)]
    pin_to_one_core()
    return [row for corpus in corpora for row in measure_corpus(*corpus)]


def simulate_lengths(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of `count` pairs of sentences, 2 to 256 a side, the target's close to the source's."""
    random = np.random.default_rng(seed)
    source = random.gamma(LENGTH_SHAPE, MEAN_LENGTH / LENGTH_SHAPE, count)
    target = source * random.normal(1.05, 0.2, count)
    return tuple(np.clip(side.astype(np.int64) + 2, 2, 256) for side in (source, target))


def write_corpus(count: int, folder: Path) -> None:
    """The arrays of a corpus of `count` pairs, with holes for its ids and original indices."""
    ends = [0, 0]
    with (
        ArrayWriter(folder / f"{ARRAYS[2]}.npy", np.int64) as source_file,
        ArrayWriter(folder / f"{ARRAYS[3]}.npy", np.int64) as target_file,
    ):
        files = source_file, target_file
        for file in files:
            file.append(np.zeros(1, np.int64))
        for start in range(0, count, CHUNK_PAIRS):
            chunk = simulate_lengths(min(CHUNK_PAIRS, count - start), start)
            for side, lengths in enumerate(chunk):
                offsets = ends[side] + np.cumsum(lengths)
                files[side].append(offsets)
                ends[side] = int(offsets[-1])
    for name, size, dtype in (
        (ARRAYS[0], ends[0], np.uint16),
        (ARRAYS[1], ends[1], np.uint16),
        (ARRAYS[4], count, np.int64),
    ):
        np.lib.format.open_memmap(folder / f"{name}.npy", "w+", dtype, (size,)).flush()


class AnonymousPeak:
    """The highest RssAnon seen every 10 ms, and what it was at the start, in bytes."""

    def __enter__(self) -> AnonymousPeak:
        self.start = self.highest = process_memory("RssAnon")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(0.01):
            self.highest = max(self.highest, process_memory("RssAnon"))

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def boundary(plan: Any) -> int:
    """First step of the second window of epoch 0; of the second epoch if there is one window."""
    if not hasattr(plan, "locate"):
        return plan.steps_per_epoch
    first, low, high = plan.locate(0)[0], 0, plan.steps_per_epoch
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if plan.locate(middle)[0] == first else (low, middle)
    return high


def work(folder: Path, batching: str, steps: int) -> None:
    """The measured process: plan, first batch, `steps` batches across a boundary; prints JSON."""
    pin_to_one_core()
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS}
    count = len(arrays["original_index"])
    corpus = TokenizedCorpus(**arrays, report=CorpusReport(read=count, kept=count))
    settings = DataConfig(batching=batching)
    with AnonymousPeak() as peak:
        with Stopwatch() as planning:
            plan = make_plan(corpus, settings, seed=0, row_multiple=ROW_MULTIPLE, shuffle=True)
        with Stopwatch() as first:
            make_batch(corpus, plan, 0, slice(None), 0)
        middle = boundary(plan)
        before = range(max(middle - steps // 2, 0), middle)
        after = range(middle + 1, middle + steps // 2)
        with Stopwatch() as steady:
            deliver(corpus, plan, before)
        with Stopwatch() as pause:
            deliver(corpus, plan, range(middle, middle + 1))
        with Stopwatch() as resumed:
            deliver(corpus, plan, after)
    steady.wall, steady.cpu = steady.wall + resumed.wall, steady.cpu + resumed.cpu
    pairs = count_pairs(plan, before) + count_pairs(plan, after)
    cells = {
        "steps an epoch": f"{plan.steps_per_epoch:,}",
        "shapes": f"{len(plan.shapes())}",
        "plan, s": planning.seconds(),
        "first batch, s": first.seconds(),
        "pairs/s": steady.rate(pairs),
        "first batch of the next window, s": pause.seconds(),
        "anonymous memory at start, MiB": f"{peak.start / MIB:,.0f}",
        "its peak": f"{peak.highest / MIB:,.0f}",
        "peak with mapped files": f"{process_memory('VmHWM') / MIB:,.0f}",
    }
    print(json.dumps(cells))


def measure_simulated(count: int, folder: Path, steps: int) -> list[dict[str, str]]:
    """Write a corpus of `count` pairs, measure it once for each way of batching, delete it."""
    free = shutil.disk_usage(folder).free
    if free < 16 * count + DISK_LEFT:
        raise SystemExit(f"error: {count:,} pairs need {16 * count:,} bytes, {free:,} are free")
    print(f"writing {count:,} pairs", file=sys.stderr)
    corpus = Path(tempfile.mkdtemp(dir=folder))
    rows = []
    try:
        write_corpus(count, corpus)
        disk = sum(path.stat().st_blocks * 512 for path in corpus.iterdir()) / 1e6
        for batching in BATCHINGS:
            print(f"measuring {count:,} pairs, {batching}", file=sys.stderr)
            command = [sys.executable, __file__, f"--work={corpus}", f"--batching={batching}"]
            done = subprocess.run(
                [*command, f"--steps={steps}"], stdout=subprocess.PIPE, text=True, check=True
            )
            written = {"pairs, batching": f"{count:,}, {batching}", "disk, MB": f"{disk:,.0f}"}
            rows.append(written | json.loads(done.stdout))
    finally:
        shutil.rmtree(corpus)
    return rows


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0], allow_abbrev=False)
    parser.add_argument("--root", default="", help="folder of parallel text, train.en and train.de")
    parser.add_argument("--sampling", type=float, default=0.0, metavar="RATE", help="0.1, say")
    parser.add_argument("--simulate", nargs="+", type=int, metavar="PAIRS", help="corpus sizes")
    parser.add_argument("--steps", type=int, default=4000, help="batches of a simulated corpus")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="for what is written")
    parser.add_argument("--work", help="be the measured process, for the corpus in this folder")
    parser.add_argument("--batching", choices=BATCHINGS, default="buckets", help="of --work")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    if options.work:
        work(Path(options.work), options.batching, options.steps)
        return 0
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        rows = []
        for count in options.simulate or ():
            rows += measure_simulated(count, Path(folder), options.steps)
        rows = rows or measure_real(options.root, Path(folder), options.sampling)
    print(markdown_table(list(rows[0]), [list(row.values()) for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
