"""Measure what this process uses, together with all that it has started, such as Java for Spark."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def resident(what: str, pid: int | str = "self") -> int:
    """Return the bytes that a process has in memory (VmRSS), or the most that it had (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(next(x for x in status.splitlines() if x.startswith(what)).split()[1])


def family() -> list[int]:
    """Return the ids of this process and of all that it has started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process may have ended
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def processor_s() -> float:
    """Return the processor seconds of this process and of all that it has started."""
    ticks = 0
    for pid in family():
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])  # including ended children
    return ticks / os.sysconf("SC_CLK_TCK")
