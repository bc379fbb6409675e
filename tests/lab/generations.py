"""Generations that no coordinator makes."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

from everstep.engine.fixed_world import LoneMembership
from everstep.engine.group import Group
from everstep.errors import JobStopped

_STOPPED = "stopped"


class Generations(LoneMembership):
    """Each generation is formed when the previous one is broken. `form`: forms the group of the next generation.
    `store`: where a worker that stops the job says so to the others."""

    def __init__(self, worker: str, form: Callable[[int], Group], store: dist.Store | None = None) -> None:
        self.worker, self._form = worker, form
        self._is_closed = False
        self._store = store if store is not None else dist.HashStore()

    def is_closed(self, generation: int) -> bool:
        return self._is_closed

    def report_broken(self, generation: int, reason: str, *, must_probe: bool = False) -> None:
        self._is_closed = True
        self._group.break_()

    def stop_job(self, reason: str) -> None:
        self._store.set(_STOPPED, reason)

    def next_group(self, after: int) -> Group:
        self._is_closed = False
        try:
            self._group = self._form(after)
        except dist.DistStoreError:  # a peer did not come: a coordinator would have known why at once
            if self._store.check([_STOPPED]):
                raise JobStopped(self._store.get(_STOPPED).decode(), code="job-stopped") from None
            raise
        return self._group
