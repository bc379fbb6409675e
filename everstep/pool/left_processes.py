"""Whether processes of a node's trials are left on this machine, after its agent has ended.

The kernel ends them with the agent, but not at the same moment, and one that is frozen ends only when it is continued.
Each worker maps a file in the folder of its assignment, and the process that watches it works there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from everstep.process import started_at


def are_processes_left(folder: Path, since: int) -> bool:
    """Whether processes still use files in this folder; True also if one cannot be inspected. `since`: when the agent
    started, by the kernel's clock; older processes are not its own."""
    inside = f"{folder.resolve()}/"
    return any(_uses(each, inside) for each in _own_processes(since))


def _own_processes(since: int) -> Iterator[Path]:
    """Processes of this user since then. The nodes that we start run as this user."""
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if each.stat().st_uid == os.geteuid() and int(started_at(int(each.name)) or -1) >= since:
                yield each


def _uses(process: Path, inside: str) -> bool:
    try:
        where = os.readlink(process / "cwd")
        return f"{where}/".startswith(inside) or inside in (process / "maps").read_text(errors="surrogateescape")
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return False
    except OSError:
        return True
