"""Read TensorBoard event files that this node's workers write into the job's metrics, for scripts that report nothing.

A file is a worker's if its name has this host and the worker's process, as the usual writers name their files; so no
other job's files are taken, wherever they are below the folder. Tags keep their names, steps, times and NaNs. A worker
with several folders: what is not in the first one has the folder's name before its tags; what is not of rank 0 has the
worker's name. How far each file was read is in a file, kept after the coordinator has the points: the next agent of
this folder continues from there. A thread and a connection of its own; nothing here can end a job."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from everstep.client.calls import Coordinator
from everstep.errors import EverstepError, TemporaryError
from everstep.record.event_file import OURS, Damaged, Scalar, needed_bytes, read_scalars
from everstep.settings import MAX_NUMBER
from everstep.storage import private_file
from everstep.wire import MetricReport, MetricReports, to_value, valid_texts
from everstep.wire.bounds import MAX_INT, MAX_NAME

log = logging.getLogger("everstep")

LOOK_S = 5.0
_REPORTED_BY_US = ("training/", "validation/")
_READ_BYTES = 1 << 20
_MOST_REPORTS = 500
_MOST_FOLDERS, _MOST_DEPTH = 5_000, 8
_NAME = re.compile(r"events\.out\.tfevents\.(\d+)\.(.+)")
_PROCESS = re.compile(r"\.(\d+)\.\d+(\..*)?")  # after the host's name
_STATE = "event-files.json"
_UNREAD = "the last values in TensorBoard files may be missing"


@dataclass(kw_only=True)
class FollowedFile:
    worker: str
    prefix: str
    at: int = 0  # bytes that were read and kept


@dataclass(kw_only=True)
class EventWorker:
    name: str
    rank: int
    began_at: float
    first_folder: str = ""


@dataclass(kw_only=True)
class EventFilesState:
    """What the next agent of this folder must know."""

    workers: dict[str, EventWorker] = field(default_factory=dict)  # by process
    files: dict[str, FollowedFile] = field(default_factory=dict)  # by path


class EventFiles:
    def __init__(
        self, connect: Callable[[], Coordinator], *, root: Path | None, directory: Path, say: Callable[[str], None]
    ) -> None:
        """`root`: the folder to look in and below; None: nowhere. `directory`: of the agent's own files."""
        self._connect, self._root, self._path, self._say = connect, root, directory / _STATE, say
        self._state = _load(self._path)
        self._told: set[str] = set()  # what was said already
        self._num_refused = 0
        self._lock = threading.Lock()  # for each change of the state, and writing it
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event files", daemon=True)

    def __enter__(self) -> EventFiles:
        if self._root is not None:
            self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close(0.0)

    def follow(self, worker: str, pid: int, *, rank: int) -> None:
        with self._lock, contextlib.suppress(OSError):  # a full disk: only what a killed agent leaves is lost
            self._state.workers[str(pid)] = EventWorker(name=worker, rank=rank, began_at=time.time())
            if self._root is not None:
                self._save()

    def close(self, patience_s: float) -> None:
        """Read the rest. May be called again."""
        self._is_closing.set()
        if self._thread.ident is not None:
            self._thread.join(patience_s)
            if self._thread.is_alive() and patience_s:
                self._say_once(f"{_UNREAD}: reading in {self._root} took more than {patience_s:g} s")
        if self._num_refused:
            self._say(
                f"{self._num_refused} values from TensorBoard files were not kept: names, steps or times out of bounds"
            )
            self._num_refused = 0

    # --- the thread ---

    def _run(self) -> None:
        pause_s = LOOK_S
        while True:
            is_last = self._is_closing.wait(pause_s)
            began_s = time.monotonic()
            try:
                self._look()
            except (TemporaryError, OSError) as error:  # next time
                log.debug("will retry reading TensorBoard files: %s", error)
                if is_last:
                    self._say_once(f"{_UNREAD}: {error}")
            except EverstepError as error:
                self._say_once(f"stopped reading TensorBoard files: {error.message}")
                return
            if is_last:
                return
            pause_s = max(LOOK_S, 20 * (time.monotonic() - began_s))  # a large folder is looked at less often

    def _look(self) -> None:
        """Known files first: at the end of a job, their last points must not wait for a walk through a large folder."""
        known = dict(self._state.files)
        self._read(known)
        self._find_new()
        self._read({path: file for path, file in self._state.files.items() if path not in known})

    def _read(self, files: dict[str, FollowedFile]) -> None:
        if not files:
            return
        with self._connect() as coordinator:
            for path, file in files.items():
                self._read_on(coordinator, path, file)

    def _find_new(self) -> None:
        assert self._root is not None
        host = socket.gethostname()
        with self._lock:
            workers = dict(self._state.workers)
        if not workers:
            return
        for path in sorted(_event_files(self._root), key=lambda each: (each.name, str(each))):  # oldest first
            if str(path) not in self._state.files and (owner := owner_of(path.name, host, workers, _above)) is not None:
                with self._lock:
                    prefix = _prefix(owner, path.parent)
                    self._state.files[str(path)] = FollowedFile(worker=owner.name, prefix=prefix)
                    self._save()

    def _read_on(self, coordinator: Coordinator, path: str, file: FollowedFile) -> None:
        num_bytes = _READ_BYTES
        while True:
            data = _read(path, file.at, num_bytes)
            try:
                scalars, end = read_scalars(data)
            except Damaged as error:
                self._say_once(f"stopped reading {path} at byte {file.at}: {error}")
                return
            if not end:
                if len(data) < num_bytes:
                    return  # its writer is not done with the next record
                num_bytes = max(2 * num_bytes, needed_bytes(data))
                continue
            self._send(coordinator, file, scalars, is_ours=path.endswith(OURS))
            num_bytes = _READ_BYTES
            with self._lock:
                file.at += end
                self._save()

    def _send(self, coordinator: Coordinator, file: FollowedFile, scalars: list[Scalar], *, is_ours: bool) -> None:
        reports = list[MetricReport]()
        for each in scalars:
            if is_ours and each.tag.startswith(_REPORTED_BY_US):
                continue
            name = valid_texts(file.prefix + each.tag)  # a folder may have any bytes for a name
            is_named = 0 < len(name) <= MAX_NAME and "\0" not in name
            if not (is_named and 0 <= each.step <= MAX_INT and 0.0 <= each.time <= MAX_NUMBER):
                self._num_refused += 1
                continue
            reports.append(MetricReport(step=each.step, time=each.time, values={name: to_value(each.value)}))
        for first in range(0, len(reports), _MOST_REPORTS):
            some = MetricReports(reports=reports[first : first + _MOST_REPORTS])
            coordinator.report_metrics(file.worker, some)

    def _say_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._say(line)

    def _save(self) -> None:
        """With the lock held: no change comes in between, and an older state never replaces a newer one."""
        private_file.write_json(self._path, asdict(self._state))


def owner_of(
    name: str, host: str, workers: dict[str, EventWorker], above: Callable[[str], Iterable[str]] = lambda _: ()
) -> EventWorker | None:
    """The worker whose file this is. Some writers leave out the process: then it is the one of the lowest rank.
    `above`: the processes that have started a process, directly or not."""
    found = _NAME.fullmatch(name)
    if found is None or not found[2].startswith(host):
        return None
    created_at, rest = int(found[1]), found[2].removeprefix(host)
    if process := _PROCESS.fullmatch(rest):
        owner = next((workers[pid] for pid in (process[1], *above(process[1])) if pid in workers), None)
    else:
        owner = min(workers.values(), key=lambda each: each.rank) if not rest.strip(".") else None
    # By its name, and a second less than the clock says: processes of earlier jobs had the same numbers.
    return owner if owner is not None and created_at >= int(owner.began_at) - 1 else None


def _above(pid: str) -> Iterator[str]:
    """While it lives: a worker may be a shell that starts the script."""
    for _ in range(_MOST_DEPTH):
        try:
            pid = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            return
        yield pid


def _prefix(owner: EventWorker, folder: Path) -> str:
    """What tags of files in this folder begin with."""
    worker = "" if owner.rank == 0 else f"{owner.name}/"
    owner.first_folder = owner.first_folder or str(folder)
    if str(folder) == owner.first_folder:
        return worker
    above = os.path.commonpath([folder, owner.first_folder])
    return f"{worker}{os.path.relpath(folder, above)}/"


def _event_files(root: Path) -> Iterator[Path]:
    first_depth = len(root.parts)
    for folder, below, names in itertools.islice(os.walk(root), _MOST_FOLDERS):
        is_deep = len(Path(folder).parts) - first_depth >= _MOST_DEPTH
        below[:] = [] if is_deep else sorted(each for each in below if not each.startswith((".", "__")))
        yield from (Path(folder) / name for name in names if "tfevents" in name)


def _read(path: str, start: int, num_bytes: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(num_bytes)
    except FileNotFoundError:
        return b""


def _load(path: Path) -> EventFilesState:
    try:
        told = json.loads(path.read_text())
        return EventFilesState(
            workers={pid: EventWorker(**each) for pid, each in told["workers"].items()},
            files={name: FollowedFile(**each) for name, each in told["files"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError):  # none yet: all is read from the beginning
        return EventFilesState()
