"""One run per workdir at a time, by a lock that expires when its run is killed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from jaxformer.errors import InputError

LEASE = 60.0  # seconds without a beat after which a lock from elsewhere is stale
BEATS = 6  # per lease
EXIT_SECONDS = 10.0  # to wait for a beat that a file system blocks


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who holds a lock.

    Attributes:
      host: name of the machine.
      pid: process id.
      started: when it took the lock, local time with UTC offset.
      machine: boot and process namespace, within which process ids are unique.
      ticks: when the process was started, in the kernel's clock; 0: unknown.
      token: different for every lock.
    """

    host: str
    pid: int
    started: str
    machine: str
    ticks: int
    token: str

    @classmethod
    def here(cls) -> Holder:
        """This process, now."""
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        ticks = process_start(os.getpid()) or 0
        host = socket.gethostname()
        return cls(host, os.getpid(), started, machine_id(), ticks, uuid.uuid4().hex)

    @classmethod
    def parse(cls, text: bytes) -> Holder | None:
        """The holder that a lock file names; None for a truncated file."""
        try:
            values = json.loads(text)
            del values["beat"]
            return cls(**values)
        except (ValueError, KeyError, TypeError):
            return None

    def is_alive(self) -> bool | None:
        """Whether the process runs; None if this machine cannot tell."""
        if self.machine != machine_id():
            return None
        ticks = process_start(self.pid)
        return ticks is not None and ticks in (0, self.ticks)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.started}"


class WorkdirLock:
    """Context that holds `WORKDIR/lock` and refuses another run of the workdir.

    The file names its holder and contains a counter that keeps growing. A lock is stale, and is
    taken over, if its process ran on this machine and is gone, or if it ran elsewhere (another
    host or container) and its counter does not change for a lease on the observer's clock. Neither
    a kill nor the loss of a machine therefore needs manual work, and no clocks are compared. A
    holder that was stopped for so long that its lock was taken over finds out by `check`.

    Args:
      folder: the workdir, made if it does not exist.
      log: called with messages about waiting and takeovers.
      lease: seconds.
    """

    def __init__(self, folder: Path, *, log: Callable[[str], None] = print, lease: float = LEASE):
        self._folder, self._log, self._lease = folder, log, lease
        self.path = folder / "lock"
        self._holder = Holder.here()
        self._descriptor, self._beat, self._lost = -1, 0, ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="workdir lock", daemon=True)

    def __enter__(self) -> WorkdirLock:
        """Take the lock.

        Raises:
          InputError: another run holds it, or the folder cannot be written.
        """
        try:
            self._made = not self._folder.exists()
            self._folder.mkdir(parents=True, exist_ok=True)
            while not (self._create(self.path) or self._take_over(self._wait_until_stale())):
                pass
        except OSError as error:
            raise InputError(
                f"the workdir {self._folder} cannot be written ({error.strerror}); choose another "
                "--workdir, or make it writable"
            ) from error
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()
        self._thread.join(EXIT_SECONDS)
        with contextlib.suppress(OSError):
            if not self._loss():
                self.path.unlink()
        if not self._thread.is_alive():
            os.close(self._descriptor)
        if self._made:
            with contextlib.suppress(OSError):  # a refused run leaves no empty folder
                self._folder.rmdir()

    def check(self, *, now: bool = False) -> None:
        """Raise `InputError` if this run lost the workdir; call it at each step.

        Args:
          now: read the file now; False: use what the last beat saw.
        """
        if now and not self._lost:
            self._lost = self._loss()
        if self._lost:
            raise InputError(f"{self._lost}; this run ends, and unsaved steps are lost")

    def _loss(self) -> str:
        """How the lock was lost; empty if it was not."""
        try:
            text = self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return f"{self.path} is gone: the workdir was deleted or moved, or the lock was"
        except OSError:
            return ""  # the file system may answer later
        if self._holder.token.encode() in text:
            return ""
        return f"the workdir {self._folder} was taken over by {Holder.parse(text)}"

    def _keep(self) -> None:
        while not self._ended.wait(self._lease / BEATS):
            self._lost = self._lost or self._loss()
            self._beat += 1
            # Through the descriptor, whose file is unlinked after a takeover.
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, self._text(), 0)
                os.fsync(self._descriptor)

    def _text(self) -> bytes:
        values = dataclasses.asdict(self._holder) | {"beat": f"{self._beat:010}"}
        return json.dumps(values).encode() + b"\n"

    def _create(self, path: Path) -> bool:
        """Write a new file; False if it exists."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        try:
            os.write(descriptor, self._text())
            os.fsync(descriptor)
        except OSError:
            os.close(descriptor)
            path.unlink()
            raise
        self._descriptor = descriptor
        return True

    def _take_over(self, stale: bytes) -> bool:
        """Replace a stale lock; False if another process was faster or the lock is gone."""
        own = self.path.with_name(f"lock.{self._holder.token}")
        self._create(own)
        if self._read() == stale:
            os.replace(own, self.path)
            # If several do this at once, the last one holds the lock, and all of them see that now.
            time.sleep(min(0.2, self._lease / BEATS))
            if not self._loss():
                return True
        own.unlink(missing_ok=True)
        os.close(self._descriptor)
        return False

    def _read(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def _wait_until_stale(self) -> bytes:
        """The content of a lock whose holder is gone; b"" if the lock disappeared.

        Raises:
          InputError: the holder is alive.
        """
        first = self._read()
        if first is None:
            return b""
        holder = Holder.parse(first)
        alive = holder.is_alive() if holder is not None else None
        if alive is None:
            self._log(
                f"{self.path} of {holder or 'an unknown process'} may be in use: waiting "
                f"{self._lease:.0f} s for a sign of life"
            )
            alive = self._changes(first)
        if alive:
            raise InputError(
                f"the workdir {self._folder} is in use by {holder}: wait for that run, end it, or "
                "choose another --workdir"
            )
        self._log(f"{self.path} of {holder or 'an unknown process'} is stale; taken over")
        return first

    def _changes(self, first: bytes) -> bool:
        """Whether the lock file changes within a lease; a missing file does not count."""
        deadline = time.monotonic() + self._lease
        while time.monotonic() < deadline:
            time.sleep(min(1.0, self._lease / BEATS))
            if self._read() not in (first, None):
                return True
        return False


def machine_id() -> str:
    """Identifies the scope of process ids: this boot of this machine, this process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return socket.gethostname()


def process_start(pid: int) -> int | None:
    """When a process was started, in ticks since boot; None if it does not exist or is a zombie.

    0 if the process lives but its start is unknown.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # another user's process
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    fields = stat.rpartition(b")")[2].split()  # the process name before may hold any character
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
