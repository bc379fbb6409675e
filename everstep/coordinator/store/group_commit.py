"""Changes that wait together share one transaction, so that a flush to the disk answers many calls.

A change is answered only after its transaction has committed. If one of a group fails, nothing of the group is kept,
and each of them is made again in a transaction of its own: an error is that of its change alone. If the commit fails,
all of them fail, since what was kept is unknown. Knows no table."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

MOST_TOGETHER = 256  # so that the first ones do not wait long for the last


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    change: Callable[[Connection], Any]  # may be called again, after a rollback
    answer: Future[Any] = field(default_factory=Future)


class GroupCommit:
    def __init__(self, thread: Executor, writing: Callable[[], AbstractContextManager[Connection]]) -> None:
        """`writing`: a transaction, which commits at its end unless there was an error. `thread`: makes them, one
        after another."""
        self._thread, self._writing = thread, writing
        self._waiting: deque[_Waiting] = deque()

    def submit(self, change: Callable[[Connection], Any]) -> Future[Any]:
        one = _Waiting(change)
        self._waiting.append(one)
        self._thread.submit(self._write)
        return one.answer

    def _write(self) -> None:
        """All that wait now; the calls that were submitted for the others find nothing."""
        waiting = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_TOGETHER))]
        if group := [each for each in waiting if each.answer.set_running_or_notify_cancel()]:
            self._write_group(group)

    def _write_group(self, group: Sequence[_Waiting]) -> None:
        made: list[Any] = []
        is_begun = False
        try:
            with self._writing() as connection:
                is_begun = True
                for each in group:
                    made.append(each.change(connection))
        except BaseException as error:
            if is_begun and len(made) < len(group) > 1:
                for each in group:
                    self._write_group([each])
                return
            for each in group:
                each.answer.set_exception(error)
        else:
            for each, result in zip(group, made, strict=True):
                each.answer.set_result(result)
