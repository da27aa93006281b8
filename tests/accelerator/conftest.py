"""Compilers of GPUs and TPUs that are not here, each in a process of its own."""

import collections
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("accelerator.program_checks")

from accelerator.known_defects import known_defect  # noqa: E402

from jaxformer.runtime.xla_flags import CUDA_PLUGINS  # noqa: E402

ROOT = Path(__file__).parents[2]
PACKAGES = {"gpu": CUDA_PLUGINS, "tpu": ("libtpu",)}
INSTALL = 'pip install -e ".[dev,cuda,tpu]"'
# What the tests set for simulated CPU devices, and what a developer sets for himself.
NOT_PASSED_ON = ("JAX", "XLA_FLAGS", "LIBTPU_INIT_ARGS", "PJRT_")
WARNINGS = {"TF_CPP_MIN_LOG_LEVEL": "1", "TPU_MIN_LOG_LEVEL": "1", "TPU_STDERR_LOG_LEVEL": "1"}


class Compiler:
    """A `compile_worker` of one platform, started again if it has died; its answers are kept."""

    def __init__(self, platform):
        self.platform, self._process, self._known = platform, None, {}

    def __call__(self, one, *, whole_lookups=False):
        if (one, whole_lookups) not in self._known:
            request = dataclasses.asdict(one) | {"whole_lookups": whole_lookups}
            self._known[one, whole_lookups] = self._ask(request)
        return self._known[one, whole_lookups]

    def knows(self, one):
        return (one, False) in self._known

    def _ask(self, request):
        process = self._process = self._process or self._start()
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        if answer := process.stdout.readline():
            return json.loads(answer)
        self._process = None
        return {"error": f"the compiler has died, exit status {process.wait()}"}

    def _start(self):
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED_ON)
        }
        found = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
        return subprocess.Popen(
            [sys.executable, "-m", "accelerator.compile_worker", self.platform],
            env=kept | WARNINGS | found, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            encoding="utf-8",
        )  # fmt: skip

    def close(self):
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait()


@pytest.fixture(scope="session")
def compilers():
    """Compilers by platform."""
    every = {platform: Compiler(platform) for platform in PACKAGES}
    yield every
    for compiler in every.values():
        compiler.close()


@pytest.fixture
def compiler_for(compilers):
    """compiler_for(combination): its compiler; fails where it is not installed."""

    def find(one):
        if not any(map(importlib.util.find_spec, PACKAGES[one.platform])):
            packages = " or ".join(PACKAGES[one.platform])
            pytest.fail(f"no {packages}, which compiles without a device: {INSTALL}", pytrace=False)
        return compilers[one.platform]

    return find


@pytest.fixture
def compile_for(compiler_for, request):
    """compile_for(combination): what was found in its program."""

    def compiled(one):
        compiler = compiler_for(one)
        new, facts = not compiler.knows(one), compiler(one)
        if new:
            figures = one.chip, one.program, facts.get("seconds"), str(one)
            request.node.user_properties.append(("compiled", figures))
        if "error" in facts:
            pytest.fail(f"{one} does not compile: {facts['error']}", pytrace=False)
        return facts

    return compiled


def pytest_generate_tests(metafunc):
    """Run each check of a class on each of the combinations that the class names."""
    if "combination" in metafunc.fixturenames:
        cases = []
        for one in metafunc.cls.combinations:
            reason = known_defect(metafunc.function.__name__, one)
            defect = pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)
            cases.append(pytest.param(one, id=str(one), marks=[defect] if reason else []))
        metafunc.parametrize("combination", cases)


def pytest_terminal_summary(terminalreporter):
    """How many programs were compiled, and how long that took, by chip and program."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    figures = {
        tuple(value)
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "compiled"
    }
    rows = collections.defaultdict(list)
    for chip, program, seconds, _ in figures:
        rows[chip, program].append(seconds)
        rows["all", ""].append(seconds)
    if rows:
        terminalreporter.write_line(
            f"{'compiled for':<14}{'program':<12}{'asked for':>10}{'compiled':>10}{'seconds':>10}"
        )
    for (chip, program), times in sorted(rows.items(), key=lambda row: row[0][0] == "all"):
        there = [seconds for seconds in times if seconds is not None]
        terminalreporter.write_line(
            f"{chip:<14}{program:<12}{len(times):>10}{len(there):>10}{sum(there):>10.0f}"
        )
