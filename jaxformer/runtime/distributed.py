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
EXIT_SECONDS = 20.0  # for a process that ends alone to unwind
_peers: Peers | None = None  # of the job that this process belongs to


@contextmanager
def job(launch: Launch | None = None) -> Iterator[None]:
    """Belong to a job of several processes inside, if there is one; all leave it together.

    To be entered after `configure_backend` and before JAX is used. A process that leaves by an
    exception tells the others, and they end with its exit status; one that dies, or is not heard
    of for `peer_timeout` seconds, ends them with status 71 and a message that names it.

    A process that is left by `SystemExit`, or by Ctrl-C inside a call of JAX, ends with its status
    without Python's own clean-up, which would crash while XLA compiles.

    Raises:
      InputError: the environment is incomplete, or the processes do not come together.
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
            # At its own end Python takes the client away from the threads in which XLA still
            # compiles, and the process dies by SIGSEGV instead of leaving with its status.
            atexit.register(_exit, exit_status(error))
        raise
    finally:
        _peers = None


def _start(launch: Launch, environment: MutableMapping[str, str]) -> Peers | None:
    import jax

    # The only way to the store of JAX's coordinator, in which process 0 tells its address.
    from jax._src import distributed

    # It would catch SIGTERM; the run catches its signals itself, and all processes agree on a step.
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
            "--num_processes and --process_id; on Kubernetes the package `kubernetes` and the "
            "right to read pods do it as well"
        ) from error
    except RuntimeError as error:
        raise InputError(
            f"the processes did not come together: {error}; is "
            f"{launch.coordinator_address or 'the address of process 0'} right, its port free, and "
            "does every process run?"
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
    """End without the others: wait for the verdict on a lost one, or tell them why."""
    import jax

    status = exit_status(error)
    if isinstance(error, jax.errors.JaxRuntimeError):
        # Most often a collective with a process that has died: the watch names it and ends this.
        threading.Event().wait(timeout + 5.0)
    peers.abandon(status, f"{type(error).__name__}: {error}"[:2000])
    # JAX's own exit would wait for the others, or be aborted when process 0 is gone before.
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
    """With which a process ends that is left by `error`."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, KeyboardInterrupt):
        return 130
    return 2 if isinstance(error, InputError) else 1


def interrupted_jax(error: BaseException) -> bool:
    """Whether `error` is a Ctrl-C inside a call of JAX, which may be a compilation."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    modules = (
        frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)
    )
    return any(module.startswith("jax.") for module in modules)


def versions() -> str:
    """Of what every process must run alike."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "jaxlib"))


# --- inside a job; in a process of its own each of these does nothing ----------------------------


def is_first_process() -> bool:
    """Whether this process logs and writes for all."""
    return _peers is None or _peers.index == 0


def several_processes() -> bool:
    """Whether the job has more processes than this one."""
    return _peers is not None


def any_process(flag: bool, step: int) -> bool:
    """Whether the flag of any process is set, a few calls ago; see `Peers.any_process`."""
    return flag if _peers is None else _peers.any_process(flag, step)


def gather(value: Any) -> list[Any]:
    """The values (JSON) that all processes give to the same call, in their order.

    No device takes part, so that a process may keep the others waiting for as long as it likes.
    """
    return [value] if _peers is None else _peers.gather(value)


def barrier() -> None:
    """Wait until all processes are here."""
    if _peers is not None:
        _peers.barrier()


@contextmanager
def first_process_first() -> Iterator[None]:
    """The others enter when process 0 has left: they find the files that it has made."""
    if not is_first_process():
        barrier()
    yield
    if is_first_process():
        barrier()


def require_same(what: str, text: str, peers: Peers | None = None) -> None:
    """Compare a text that all processes must have alike, the configuration say.

    Raises:
      InputError: one has another than process 0; names those that do.
    """
    peers = peers or _peers
    if peers is None:
        return
    digests = peers.gather(hashlib.sha256(text.encode()).hexdigest())
    others = [str(index) for index, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise InputError(
            f"process {', '.join(others)} has another {what} than process 0; start all processes "
            f"from the same installation with the same flags (here: {text[:200]})"
        )
