"""What this machine's limits leave for more processes: limits of the user, and of the control groups that this process
is in. None: there is no limit, or it cannot be read."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def threads_left() -> int | None:
    """How many more processes and threads may be started. The kernel does not apply the user's limit to root."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    is_limited = limit != resource.RLIM_INFINITY and os.geteuid() != 0
    user = [limit - _num_threads(os.getuid())] if is_limited else []
    return min([*user, *_left_in_groups("pids", "pids.max", "pids.current")], default=None)


def memory_left() -> int | None:
    """In bytes, without swap."""
    rows = (row.split() for row in _text(PROC / "meminfo").splitlines())
    free = [int(row[1]) << 10 for row in rows if row[0] == "MemAvailable:"]
    groups = [
        *_left_in_groups("memory", "memory.max", "memory.current"),
        *_left_in_groups("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),  # version 1
    ]
    return min([*free, *groups], default=None)


def _left_in_groups(controller: str, limit: str, used: str) -> Iterator[int]:
    for folder in _groups(controller):
        most, now = _text(folder / limit).strip(), _text(folder / used).strip()
        if most.isdigit() and now.isdigit():
            yield max(0, int(most) - int(now))


def _groups(controller: str) -> Iterator[Path]:
    """The control group of this process and all above it, because each of them sets limits. In a container, only the
    root may be visible."""
    for line in _text(PROC / "self" / "cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        root = CGROUPS / controller if names else CGROUPS  # version 1, or 2
        inner = Path(path.lstrip("/"))
        yield from (root / each for each in (inner, *inner.parents))


def _num_threads(user: int) -> int:
    found = 0
    for status in PROC.glob("[0-9]*/status"):
        values = dict(row.split(":", 1) for row in _text(status).splitlines() if ":" in row)
        if values.get("Uid", "").split()[:1] == [str(user)]:
            found += int(values.get("Threads", "1"))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
