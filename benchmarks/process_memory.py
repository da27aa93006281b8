"""Memory of this process as Linux reports it."""

from __future__ import annotations

from pathlib import Path


def process_memory(field: str) -> int:
    """Bytes under a field of /proc/self/status: VmHWM, the most held at once, RssAnon, ..."""
    for line in Path("/proc/self/status").read_text("utf-8").split("\n"):
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}; it is measured on Linux only")
