"""The output of a job, for programs: from its coordinator while that answers, else from what it has left.

It leaves its record, in the job's folder or beside the checkpoints, with the same lines and the same cursors: a reader
that follows a job continues there when the coordinator is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from everstep.client.calls import Coordinator
from everstep.errors import Refused, TemporaryError, UsageError
from everstep.wire import MAX_LINES, LoggedLine, LogsRequest, LogsView

_PAGE_LINES = 2000
_HELD_S = 5.0
_AGAIN_S = 1.0

Live = Callable[[], AbstractContextManager[Coordinator | None]]


class JobLog:
    def __init__(
        self, job: str, *, live: Live, left: Callable[[], Path | None], is_over: Callable[[], bool] = lambda: False
    ) -> None:
        """`live`: its coordinator, None if that is gone or out of reach. `left`: the folder with its record."""
        self._job, self._live, self._left, self._is_over = job, live, left, is_over
        self._cursor = ""
        self._tail = 0  # lines that are still to be read from the end
        self._shown: dict[str, int] = {}
        self.notes: list[str] = []  # what was dropped

    def has_any(self) -> bool:
        """Whether there is a coordinator to ask, or a record."""
        try:
            with self._live() as coordinator:
                if coordinator is not None:
                    coordinator.logs(LogsRequest(limit=1))
                    return True
        except (TemporaryError, Refused, OSError):  # refused: by another one, which has the port now
            pass
        return self._left() is not None

    def lines(self, wanted: LogsRequest, *, tail: int = 0, follow: bool = False) -> Iterator[LoggedLine]:
        """In the order of arrival; with `tail`, only the last N. With `follow`, until the job is over and all
        its nodes have left."""
        self._tail = tail
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
                yield from self._from_record(wanted)
                return
            threading.Event().wait(_AGAIN_S)

    def _from_coordinator(self, coordinator: Coordinator, wanted: LogsRequest, *, follow: bool) -> Iterator[LoggedLine]:
        yield from self._last(coordinator.logs, wanted)
        while True:
            is_last = not follow or _has_ended(coordinator)  # before the look: what came before is seen
            wait_s = 0.0 if is_last else _HELD_S
            view = coordinator.logs(replace(wanted, cursor=self._cursor, limit=_PAGE_LINES, wait_s=wait_s))
            yield from self._new(view)
            if is_last and view.is_end:
                return

    def _from_record(self, wanted: LogsRequest) -> Iterator[LoggedLine]:
        if (folder := self._left()) is None:
            raise UsageError(
                f"{self._job}: its coordinator is gone, and it left no log here",
                hint="see its workers' files in its folder; for a submitted job, use --raw to read the platform's log",
                code="job-log-missing",
            )
        from everstep.coordinator.finished_record import open_record

        with open_record(folder, self._job) as record:
            yield from self._last(record.logs, wanted)
            while True:
                view = record.logs(replace(wanted, cursor=self._cursor, limit=_PAGE_LINES))
                yield from self._new(view)
                if view.is_end:
                    return

    def _last(self, read: Callable[[LogsRequest], LogsView], wanted: LogsRequest) -> Iterator[LoggedLine]:
        """The tail, once. None of it is given before all of it is read, so a reader that fails begins again."""
        if not self._tail:
            return
        view = read(replace(wanted, tail=min(self._tail, MAX_LINES)))
        views, num_found = [view], _num_found(view)
        while view.previous and num_found < self._tail:
            tail = min(self._tail - num_found, MAX_LINES)
            view = read(replace(wanted, cursor=view.previous, tail=tail))
            views, num_found = [view, *views], num_found + _num_found(view)
        for each in views:
            yield from self._new(each)
        self._cursor, self.notes, self._tail = views[-1].next, views[-1].notes, 0

    def _new(self, view: LogsView) -> Iterator[LoggedLine]:
        """Context may be on two pages."""
        self._cursor, self.notes = view.next, view.notes
        for each in view.lines:
            if each.line > self._shown.get(each.worker, -1):
                self._shown[each.worker] = each.line
                yield each


def _num_found(view: LogsView) -> int:
    return sum(not each.is_context for each in view.lines)


def _has_ended(coordinator: Coordinator) -> bool:
    view = coordinator.view(is_brief=True)
    return (view.is_finished or view.is_stopped) and not any(node.is_present for node in view.nodes)
