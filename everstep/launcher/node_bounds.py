"""Keep what runs leave on a node within its bounds: events by bytes, while a job runs; logs of old runs by days.

The bounds are the job's. Each drop is counted and reported. The record of a run (record.json and the coordinator's
files) stays. A thread of its own; nothing here can end a job."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from everstep.client.calls import Coordinator
from everstep.errors import EverstepError
from everstep.launcher import run_record
from everstep.storage.free_space import free_beginning
from everstep.wire import LogChunks

log = logging.getLogger("everstep")

LOOK_S = 30.0
_FIRST_S = 1.0  # until the first look: most runs are short, and their folder should not grow either
_DAY_S = 86_400.0
_END_S = 1.0  # a call may be under way
_PIECE_BYTES = 1 << 20
_LOGS = ("w[0-9]*", "attempt_[0-9]*", "node-*", "events.jsonl", "*.log", "event-files.json")  # of a run's folder


class NodeBounds:
    """`events`: the file that this node's processes append to. `directory`: of this run, beside those of others."""

    def __init__(
        self,
        connect: Callable[[], Coordinator],
        *,
        agent: str,
        events: Path,
        directory: Path,
        say: Callable[[str], None],
    ) -> None:
        self._connect, self._agent, self._events, self._directory, self._say = connect, agent, events, directory, say
        self._num_dropped = 0
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="node bounds", daemon=True)

    def __enter__(self) -> NodeBounds:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_closing.set()
        self._thread.join(_END_S)
        if self._num_dropped:
            self._say(
                f"{self._num_dropped:,} of the oldest events were dropped from {self._events}: beyond node_log_mb"
            )

    def _run(self) -> None:
        most_bytes = 0
        while not self._is_closing.wait(LOOK_S if most_bytes else _FIRST_S):
            try:
                if not most_bytes:
                    with self._connect() as coordinator:
                        bounds = coordinator.send_logs(self._agent, LogChunks())
                    most_bytes = bounds.node_log_mb * 1_000_000
                    self._drop_old(bounds.node_log_days)
                self._num_dropped += drop_events(self._events, most_bytes)
            except (EverstepError, OSError) as error:
                log.debug("will retry checking this node's files: %s", error)

    def _drop_old(self, days: float) -> None:
        if not days:
            return
        old, num_bytes = drop_old_logs(self._directory.parent, days, time.time())
        if old:
            self._say(
                f"removed the logs ({num_bytes / 1e6:.1f} MB) of {len(old)} runs in {self._directory.parent} that "
                f"ended more than {days:g} days ago; their records stay"
            )


def drop_events(path: Path, most_bytes: int) -> int:
    """Free the oldest events of a file that takes more room than this. Returns how many that were."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0
    if status.st_blocks * 512 <= most_bytes:
        return 0
    freed = status.st_size - status.st_blocks * 512  # before
    end = status.st_size - most_bytes // 2  # half of it: else a little would be freed all the time
    num_events, at = 0, max(0, freed)
    with path.open("rb") as file:
        file.seek(at)
        while at < end and (data := file.read(min(_PIECE_BYTES, end - at))):
            num_events, at = num_events + data.count(b"\n"), at + len(data)
    return num_events if free_beginning(path, at) else 0


def drop_old_logs(log_dir: Path, days: float, now: float) -> tuple[list[str], int]:
    """Of runs that ended more than this many days ago. Returns their names, and the number of bytes."""
    old, num_bytes = list[str](), 0
    for directory, record in run_record.newest_first(log_dir):
        ended_at = (directory / run_record.NAME).stat().st_mtime
        if record.shown_state == run_record.RUNNING or ended_at > now - days * _DAY_S:
            continue
        found = [path for pattern in _LOGS for path in directory.glob(pattern)]
        if not found:
            continue
        num_bytes += sum(_size(path) for path in found)
        for path in found:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() and not path.is_symlink() else path.unlink()
        old.append(directory.name)
    return old, num_bytes


def _size(path: Path) -> int:
    paths = [path] if not path.is_dir() else list(path.rglob("*"))
    return sum(each.lstat().st_blocks * 512 for each in paths if not each.is_dir())
