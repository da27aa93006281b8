"""Several processes as one job: how they start, who writes, and how they end together."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.metadata
import os
import sys
import threading
import traceback
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from jaxformer.errors import InputError
from jaxformer.runtime.launch import Launch, local_devices, resolve
from jaxformer.runtime.peers import Peers, delay_abort
from jaxformer.runtime.xla_flags import expected_platform

ADDRESS_KEY = "jaxformer/peers"
EXIT_SECONDS = 20.0  # that a process ending alone gets to unwind
_peers: Peers | None = None  # of the job that this process belongs to


@contextmanager
def job(launch: Launch | None = None) -> Iterator[None]:
    """Join the job of several processes, if there is one; all processes leave it together.

    Enter it after `configure_backend` and before JAX is used. A process that leaves with an
    exception tells the others, which end with its exit status. A process that dies or is silent for
    `peer_timeout` seconds ends the others with status 71 and a message that names it.

    After `SystemExit`, or Ctrl-C inside a call of JAX, the process exits without Python's own
    clean-up, which would crash while XLA compiles.

    Raises:
      InputError: the environment is incomplete, or the processes cannot connect.
    """
    global _peers
    found = resolve(launch or Launch(), os.environ)
    _peers = None if found is None else _start(found, os.environ)
    try:
        yield
        if _peers is not None:
            _peers.leave()
    except BaseException as error:
        if _peers is not None:
            _leave_alone(_peers, error, found.peer_timeout)
        elif isinstance(error, SystemExit) or interrupted_jax(error):
            # On exit Python destroys the client while XLA's threads still compile with it, and the
            # process would die by SIGSEGV instead of leaving with its status.
            atexit.register(_exit, exit_status(error))
        raise
    finally:
        _peers = None


def _start(launch: Launch, environment: MutableMapping[str, str]) -> Peers | None:
    import jax

    # The only way to the store of JAX's coordinator, where process 0 publishes its address.
    from jax._src import distributed

    # It would catch SIGTERM; the run handles signals itself, and all processes agree on a step.
    jax.config.update("jax_enable_preemption_service", False)
    delay_abort()
    try:
        jax.distributed.initialize(
            coordinator_address=launch.coordinator_address or None,
            num_processes=launch.num_processes or None,
            process_id=launch.process_id if launch.process_id >= 0 else None,
            local_device_ids=local_devices(environment),
            heartbeat_timeout_seconds=int(max(100.0, 3 * launch.peer_timeout)),
        )
    except ValueError as error:
        if expected_platform(environment) == "tpu" and not launch.coordinator_address:
            return None  # one TPU machine, no pod
        raise InputError(
            f"the processes cannot find each other: {error} Give --coordinator_address=host:port, "
            "--num_processes and --process_id; on Kubernetes, installing the package `kubernetes` "
            "and permission to read pods also suffice"
        ) from error
    except RuntimeError as error:
        raise InputError(
            f"the processes did not connect: {error}; check that "
            f"{launch.coordinator_address or 'the address of process 0'} is correct, its port is "
            "free, and every process runs"
        ) from error
    state = distributed.global_state
    if state.num_processes == 1:
        return None
    settings = {"timeout": launch.peer_timeout}
    try:
        if state.process_id == 0:
            host = state.coordinator_address.rpartition(":")[0].strip("[]")
            peers = Peers.listen(
                state.num_processes,
                host,
                lambda text: state.client.key_value_set(ADDRESS_KEY, text),
                **settings,
            )
        else:
            address = state.client.blocking_key_value_get(ADDRESS_KEY, 60_000)
            peers = Peers.connect(state.process_id, state.num_processes, address, **settings)
    except (OSError, RuntimeError) as error:
        raise InputError(f"the processes cannot reach each other: {error}") from error
    require_same("versions", versions(), peers)
    return peers


def _leave_alone(peers: Peers, error: BaseException, timeout: float) -> None:
    """End this process: wait for the verdict on a lost peer, or tell the others why."""
    import jax

    status = exit_status(error)
    if isinstance(error, jax.errors.JaxRuntimeError):
        # Usually a collective with a dead process; the watch names that one and ends this one.
        threading.Event().wait(timeout + 5.0)
    peers.abandon(status, f"{type(error).__name__}: {error}"[:2000])
    # JAX's own exit would wait for the others, or abort if process 0 is already gone.
    atexit.register(_exit, status)
    timer = threading.Timer(EXIT_SECONDS, _exit, (status,))
    timer.daemon = True
    timer.start()


def _exit(status: int) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def exit_status(error: BaseException) -> int:
    """The exit status of a process that `error` ends."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, KeyboardInterrupt):
        return 130
    return 2 if isinstance(error, InputError) else 1


def interrupted_jax(error: BaseException) -> bool:
    """Whether `error` is a Ctrl-C inside a call of JAX, possibly a compilation."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    modules = (
        frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)
    )
    return any(module.startswith("jax.") for module in modules)


def versions() -> str:
    """The versions that must be the same in every process."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "jaxlib"))


# --- inside a job; in a single process each of these does nothing --------------------------------


def is_first_process() -> bool:
    """Whether this process logs and writes for the job."""
    return _peers is None or _peers.index == 0


def several_processes() -> bool:
    """Whether the job has more processes than this one."""
    return _peers is not None


def any_process(flag: bool, step: int) -> bool:
    """Whether any process set its flag, with a delay of a few calls; see `Peers.any_process`."""
    return flag if _peers is None else _peers.any_process(flag, step)


def gather(value: Any) -> list[Any]:
    """The values (JSON) that all processes pass to the same call, by process.

    No device is involved, so a process may keep the others waiting as long as it needs.
    """
    return [value] if _peers is None else _peers.gather(value)


def barrier() -> None:
    """Wait until all processes have called it."""
    if _peers is not None:
        _peers.barrier()


@contextmanager
def first_process_first() -> Iterator[None]:
    """Let process 0 run the block first, so that the others find the files it made."""
    if not is_first_process():
        barrier()
    yield
    if is_first_process():
        barrier()


def require_same(what: str, text: str, peers: Peers | None = None) -> None:
    """Check that a text, such as the configuration, is the same in all processes.

    Args:
      what: the text is, for the message.
      text: of this process.
      peers: the job; None: the one this process joined.

    Raises:
      InputError: it differs; names the processes that disagree with process 0.
    """
    peers = peers or _peers
    if peers is None:
        return
    digests = peers.gather(hashlib.sha256(text.encode()).hexdigest())
    others = [str(index) for index, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise InputError(
            f"process {', '.join(others)} and process 0 disagree on the {what}; start all "
            f"processes from the same installation with the same flags (here: {text[:200]})"
        )
