"""Processes of this machine: their children, which ones belong to a job, which resources they hold."""

from __future__ import annotations

from pathlib import Path

from everstep.process import ENDED, process_state


def children(pid: int) -> list[int]:
    """Not by /proc/PID/task/*/children, which skips some while others end."""
    stats = {int(stat.parent.name): _read(stat) for stat in Path("/proc").glob("[0-9]*/stat")}
    return [child for child, stat in stats.items() if stat and int(stat.rpartition(")")[2].split()[1]) == pid]


def parent(pid: int) -> int:
    return int(_read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[1])


def coordinator_of(pid: int) -> int:
    """The one that this run has started."""
    (found,) = (child for child in children(pid) if "serve" in _command(child))
    return found


def nurseries_of(pid: int) -> list[int]:
    return [child for child in children(pid) if any("everstep.nursery" in part for part in _command(child))]


def _command(pid: int) -> list[str]:
    return _read(Path(f"/proc/{pid}/cmdline")).split("\0")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return ""


def are_gone(pids: list[int]) -> bool:
    return all(process_state(pid) == ENDED for pid in pids)


def num_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def num_threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))) / 1024


def processes_of(job_id: str) -> list[str]:
    """Processes of the job on this machine, including those in containers."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if job_id.encode() in (folder / "environ").read_bytes():
                found.append(f"{folder.name}: {(folder / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()}")
        except OSError:  # it has just ended, or is another user's
            continue
    return found
