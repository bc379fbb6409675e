"""The machine in the machine: processes, mounts, shared memory, networks and temporary files of this soak alone.

So what a schedule leaves behind is seen at once, however busy the machine is with others, and the end of the soak is
the end of all of it. Needs root (Linux)."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everstep.process import ENDED, process_state
from everstep.testing import can_make_hosts
from lab import nest
from lab.command import until

_INSIDE = "SOAK_IS_IN_BOX"
_PLACES = ("/dev/shm", "/run/netns")
# Mounts spread to the hosts of a schedule, which are started with `ip netns exec`, and no further.
_ENTER = """
mkdir -p /run/netns
for place in /dev/shm /run/netns; do mount -t tmpfs tmpfs $place; done
mount --make-rshared /
"$@"
exit $?
"""
_PYTHONS = "pymp-"  # the multiprocessing module's, of a script's loaders that were killed: not ours
_GONE_S = 60.0  # for what ends by itself, on a busy machine


def can_enter() -> bool:
    return can_make_hosts()


def enter() -> None:
    """Go on inside, in a process of its own. Returns only there."""
    if os.environ.get(_INSIDE) == "1":
        return
    os.environ[_INSIDE] = "1"
    walls = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    os.execvp(walls[0], [*walls, "sh", "-ec", _ENTER, "box", sys.executable, "-m", "soak", *sys.argv[1:]])


@contextmanager
def furnished() -> Iterator[None]:
    """A folder for temporary files, and the nurseries that all schedules share."""
    with tempfile.TemporaryDirectory(dir=_PLACES[0], prefix="soak-") as folder:  # which ends with the box
        for variable in ("TMPDIR", "XDG_RUNTIME_DIR", "TORCHINDUCTOR_CACHE_DIR"):
            os.environ[variable] = str(Path(folder) / variable.partition("_")[0].lower())
            Path(os.environ[variable]).mkdir()
        tempfile.tempdir = None  # so that it is asked for again
        try:
            yield
        finally:
            nest.close()


def contents() -> set[str]:
    """All that a schedule might leave behind. Nurseries that have ended, since none was needed, are started first."""
    for kind in (nest.WORKERS, nest.CONTROL):
        nest._find(kind).close()
    return _contents()


def _contents() -> set[str]:
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*") if path.is_dir()]
    processes = {f"process {pid}: {_command(pid)}" for pid in pids if process_state(pid) != ENDED}
    places = (*_PLACES, tempfile.gettempdir())
    files = {str(path) for place in places for path in Path(place).iterdir() if not path.name.startswith(_PYTHONS)}
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    return processes | files | {f"mount {place}" for place in mounts}


def left_behind(before: set[str]) -> list[str]:
    """What is there and was not before, once all had the time to end."""
    try:
        until(lambda: _contents() <= before, timeout_s=_GONE_S)
    except AssertionError:
        return sorted(_contents() - before)
    return []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
