"""The output of a job, for programs: from its coordinator while that answers, else from what it has left.

It leaves its own file, in the job's folder or beside the checkpoints, with the same lines and the same cursors: a
reader that follows a job continues in the file when the coordinator is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep import env
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError, Refused, StorageUnreachable, TemporaryError, UsageError
from everstep.launcher.local_coordinator import CoordinatorFiles
from everstep.platforms.base import JobRecord
from everstep.storage.shared_folder import SharedFolder, below
from everstep.storage.sqlite_copy import copy_sqlite
from everstep.wire import LoggedLine, LogsView

_PAGE_LINES = 2000
_HELD_S = 5.0
_AGAIN_S = 1.0
_LEAVE_S = 120.0

Live = Callable[[], AbstractContextManager[Coordinator | None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Which lines; a field with its default asks for nothing. The names of the coordinator's call."""

    worker: str = ""
    rank: int = -1
    node: str = ""
    level: int = 0
    since: float = -1
    until: float = -1
    text: str = ""
    regex: str = ""
    context: int = 0

    def as_query(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class JobLog:
    def __init__(
        self, job: str, *, live: Live, left: Callable[[], Path | None], is_over: Callable[[], bool] = lambda: False
    ) -> None:
        """`live`: its coordinator, None if that is gone or out of reach. `left`: the file that it left."""
        self._job, self._live, self._left, self._is_over = job, live, left, is_over
        self._cursor = ""
        self._shown: dict[str, int] = {}
        self.notes: list[str] = []  # what was dropped

    def has_any(self) -> bool:
        """Whether there is a coordinator to ask, or a file."""
        try:
            with self._live() as coordinator:
                if coordinator is not None:
                    coordinator.logs(limit=1)
                    return True
        except (TemporaryError, Refused, OSError):  # refused: by another one, which has the port now
            pass
        return self._left() is not None

    def lines(self, wanted: Wanted, *, follow: bool = False) -> Iterator[LoggedLine]:
        """In the order of arrival. With `follow`, until the job is over and all its nodes have left."""
        while True:
            is_over = not follow or self._is_over()
            try:
                with self._live() as coordinator:
                    if coordinator is not None:
                        yield from self._from_coordinator(coordinator, wanted, follow=follow)
                        return
            except TemporaryError:
                pass
            if is_over:
                yield from self._from_file(wanted)
                return
            threading.Event().wait(_AGAIN_S)

    def _from_coordinator(self, coordinator: Coordinator, wanted: Wanted, *, follow: bool) -> Iterator[LoggedLine]:
        while True:
            is_last = not follow or _has_ended(coordinator)  # before the look: what came before is seen
            wait_s = 0.0 if is_last else _HELD_S
            view = coordinator.logs(cursor=self._cursor, limit=_PAGE_LINES, wait_s=wait_s, **wanted.as_query())
            yield from self._new(view)
            if is_last and view.is_end:
                return

    def _from_file(self, wanted: Wanted) -> Iterator[LoggedLine]:
        if (path := self._left()) is None:
            raise UsageError(
                f"{self._job}: its coordinator is gone, and it left no log here",
                hint="see the files of its workers in its folder; for a submitted job, --raw asks the platform",
                code="job-log-missing",
            )
        from everstep.coordinator.store.log_reader import Cursor, LogReader
        from everstep.record.log_search import check_query, log_query

        given = wanted.as_query()
        context = given.pop("context")
        query = log_query(**given)
        check_query(query)
        with closing(LogReader.of_file(path)) as reader:
            while True:
                cursor = Cursor.parse(self._cursor)
                view = reader.read(self._job, query, cursor, limit=_PAGE_LINES, context=context)
                yield from self._new(view)
                if view.is_end:
                    return

    def _new(self, view: LogsView) -> Iterator[LoggedLine]:
        """Context may be on two pages."""
        self._cursor, self.notes = view.next, view.notes
        for each in view.lines:
            if each.line > self._shown.get(each.worker, -1):
                self._shown[each.worker] = each.line
                yield each


def _has_ended(coordinator: Coordinator) -> bool:
    view = coordinator.view(is_brief=True)
    return (view.is_finished or view.is_stopped) and not any(node.is_present for node in view.nodes)


# --- what a coordinator leaves ---


def leave_beside_checkpoints(folder: Path, uri: str, job: str, *, deadline_s: float = _LEAVE_S) -> str:
    """Copy the log of a coordinator that has ended to where the job's submitter can read it; returns where that is. A
    storage that does not answer is left alone after the deadline: a pod or an allocation must not stay for it."""
    place, errors = _place(uri, job), list[Exception]()
    logs = CoordinatorFiles(directory=folder).logs

    def leave() -> None:
        whole = folder / f".{logs.name}.whole"
        try:
            copy_sqlite(logs, whole)
            place.send(logs.name, whole)
        except Exception as error:  # raised by the thread that waits
            errors.append(error)
        finally:
            whole.unlink(missing_ok=True)

    copying = threading.Thread(target=leave, name="log copy", daemon=True)
    copying.start()
    copying.join(deadline_s)
    if copying.is_alive():
        raise StorageUnreachable(f"{place.uri} did not take it within {deadline_s:g} s", code="job-log-not-copied")
    for error in errors:
        raise error
    return below(place.uri, logs.name)


def left_by(record: JobRecord) -> Path | None:
    """The log of a submitted job that is over: in its folder, or fetched from beside its checkpoints."""
    if (here := CoordinatorFiles(directory=Path(record.folder)).logs).exists():
        return here
    uri = _checkpoint_uri(record.job)
    if "://" not in uri:
        return None
    fetched = env.home() / "logs" / f"{record.id}.db"
    if not fetched.exists():
        try:
            if not _place(uri, record.id).fetch(here.name, fetched):
                return None
        except EverstepError:
            return None
    return fetched


def _place(uri: str, job: str) -> SharedFolder:
    return SharedFolder(uri=below(uri, f"record/{job}"))


def _checkpoint_uri(job: Mapping[str, Any]) -> str:
    given = job.get("checkpoint") or ""
    return str(given.get("uri", "") if isinstance(given, Mapping) else given)
