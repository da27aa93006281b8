"""Two processes of one job on this machine, started as a launcher would start them."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
DEADLINE = 400.0  # seconds for anything a test waits for, on a busy machine


def free_port():
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def environment(devices, compiled):
    """Of a process with `devices` simulated CPU devices that keeps its programs in `compiled`."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "PJRT_NPROC")}
    return {
        **inherited,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} "
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
    }


class Job:
    """A command in `count` processes; those that still run at the end of the block are killed.

    Args:
      command: arguments of Python, without the flags of the job.
      folder: for what the processes print.
      compiled: where their compiled programs are kept.
      count: of processes; 1: without the flags of a job.
      devices: simulated, of each.
      peer_timeout: seconds of silence after which a process is lost.
      last_only: arguments of the last process alone.
    """

    def __init__(
        self, command, folder, compiled, *, count=2, devices=4, peer_timeout=120, last_only=()
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.outputs = [folder / f"process_{index}.txt" for index in range(count)]
        flags = [f"--coordinator_address=127.0.0.1:{free_port()}", f"--num_processes={count}"]
        flags += [f"--peer_timeout={peer_timeout}"]
        self.processes = []
        for index, output in enumerate(self.outputs):
            own = [*flags, f"--process_id={index}"] if count > 1 else []
            own += last_only if index == count - 1 else []
            with output.open("w") as file:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, *map(str, command), *own],
                        env=environment(devices, compiled),
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        stdin=subprocess.DEVNULL,
                    )
                )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def text(self, index=0):
        """What a process has printed so far, on both streams."""
        return self.outputs[index].read_text("utf-8")

    def signal(self, index, number):
        self.processes[index].send_signal(number)

    def wait_for(self, pattern, index=0):
        """Wait until a process has printed `pattern`."""
        deadline = time.monotonic() + DEADLINE
        while not re.search(pattern, self.text(index)):
            assert self.processes[index].poll() is None, self.text(index)
            assert time.monotonic() < deadline, self.text(index)
            time.sleep(0.02)

    def wait(self, *indices):
        """Exit statuses of the processes `indices`, or of all."""
        deadline = time.monotonic() + DEADLINE
        chosen = [self.processes[index] for index in indices] or self.processes
        try:
            return [process.wait(max(deadline - time.monotonic(), 0.1)) for process in chosen]
        except subprocess.TimeoutExpired:
            for process in chosen:
                process.send_signal(signal.SIGCONT)
            raise AssertionError("\n\n".join(map(self.text, range(len(self.outputs))))) from None
