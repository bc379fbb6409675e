"""Calls to a coordinator that outlive its restarts: each is made again until it answers.

A coordinator on this machine may come back at another address, so it is looked for again after each failure."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from everstep.client.calls import Coordinator
from everstep.errors import CoordinatorUnreachable
from everstep.retry import patiently

T = TypeVar("T")

PATIENCE_S = 60.0
_NO_JOB = "experiments"  # calls about experiments name no job


class CoordinatorLink:
    def __init__(
        self,
        find: Callable[[], tuple[str, str]],
        *,
        is_local: bool = False,
        say: Callable[[str], None] | None = None,
        claim: Callable[[], None] = lambda: None,
    ) -> None:
        """`find` returns the coordinator's URL and token. `claim`: see there."""
        self._find, self._say, self.is_local = find, say, is_local
        self._claim = claim
        self._coordinator: Coordinator | None = None

    def __enter__(self) -> CoordinatorLink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def claim(self) -> None:
        """Before trials begin: a coordinator of this machine must run them with the Python environment of this process.
        Raises if it cannot."""
        self._claim()

    def close(self) -> None:
        if self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = None

    def __call__(self, call: Callable[[Coordinator], T], *, patience_s: float = PATIENCE_S) -> T:
        return patiently(lambda: self._once(call), patience_s, say=self._say)

    def _once(self, call: Callable[[Coordinator], T]) -> T:
        try:
            if self._coordinator is None:
                self._coordinator = self.of_job(_NO_JOB)
            return call(self._coordinator)
        except CoordinatorUnreachable:
            self.close()
            raise

    def of_job(self, job: str) -> Coordinator:
        """For calls about one job, such as a trial's; the caller closes it."""
        url, token = self._find()
        return Coordinator(url, token, job)
