"""Page faults of a process that allocates and frees, with and without the setting."""

import os
import subprocess
import sys

PROGRAM = """
import ctypes, resource, sys, threading
from jaxformer.runtime.allocation import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else None
c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p
c.malloc.argtypes, c.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
c.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def touch():
    block = c.malloc(200 * 2**20)
    c.memset(block, 1, 200 * 2**20)
    c.free(block)
def work():
    touch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        touch()
    print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def faults(mode: str, **variables: str) -> tuple[str, int]:
    ruled = {n: v for n, v in os.environ.items() if not n.startswith(("MALLOC_", "GLIBC_"))}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode],
        env=ruled | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    kept, count = result.stdout.split()
    return kept, int(count)


def test_freed_memory_is_not_mapped_again():
    _, mapped = faults("leave")  # three times 51,200 pages of 4 KiB, or 100 of 2 MiB
    kept, count = faults("keep")
    assert kept == "True" and mapped >= 300 and count < mapped / 10


def test_what_the_user_has_set_rules():
    assert faults("keep", MALLOC_ARENA_MAX="2")[0] == "False"
    assert faults("keep", GLIBC_TUNABLES="glibc.malloc.arena_max=2")[0] == "False"
