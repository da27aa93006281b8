"""How a process ends that is no part of a job of several: also in the middle of a compilation."""

import os
import signal
import subprocess
import sys

import pytest

from jaxformer.runtime.distributed import interrupted_jax

# A thread sends the signal while the main thread waits for XLA, which compiles in other threads.
COMPILING = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's is ignored
import jax, jax.numpy as jnp
from jaxformer.runtime import distributed
from jaxformer.training.guards.signals import StopSignals

def slow(x):
    for row in range(300):
        x = jnp.sin(x @ x) + row
    return x

def interrupt():
    while "backend_compile" not in sys._current_frames()[main].f_code.co_name:
        time.sleep(0.01)
    time.sleep(0.1)
    os.kill(os.getpid(), int(sys.argv[1]))

lowered, main = jax.jit(slow).lower(jnp.ones((8, 8))), threading.main_thread().ident
threading.Thread(target=interrupt, daemon=True).start()
try:
    with distributed.job():
        if sys.argv[2] == "caught":
            with StopSignals():
                lowered.compile()
        lowered.compile()
    print("compiled")
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("number", "how", "status"),
    [
        (signal.SIGTERM, "caught", 143),
        (signal.SIGINT, "caught", 130),
        (signal.SIGINT, "raised", 130),
    ],
)
def test_a_signal_while_xla_compiles_ends_with_its_status(number, how, status):
    command = [sys.executable, "-c", COMPILING, str(int(number)), how]
    settings = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "0"}
    ended = subprocess.run(
        command, env=os.environ | settings, capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout) == (status, ""), ended.stderr
    assert "Traceback" not in ended.stderr


def raised(error, module):
    """`error` with the traceback of a function of `module` that raised it."""
    names = {"__name__": module, "error": error}
    exec("def fail(): raise error", names)
    try:
        names["fail"]()
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "module", "expected"),
    [
        (KeyboardInterrupt(), "jax._src.compiler", True),
        (KeyboardInterrupt(), "jaxformer.commands.translate", False),
        (ValueError("shapes"), "jax._src.compiler", False),
    ],
)
def test_only_ctrl_c_inside_jax_forgoes_pythons_clean_up(error, module, expected):
    assert interrupted_jax(raised(error, module)) is expected
