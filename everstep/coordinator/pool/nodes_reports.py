"""Reports of the processes that manage the pools' nodes. Kept in memory: they report every few seconds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from everstep import wire
from everstep.coordinator.clock import Now

_STALE_S = 60.0


@dataclass(slots=True, eq=False)
class NodesReports:
    now: Now
    _reports: dict[str, tuple[float, wire.PoolNodes]] = field(default_factory=dict)

    def note(self, pool: str, report: wire.PoolNodes) -> None:
        self._reports[pool] = (self.now(), report)

    def of(self, pool: str) -> wire.PoolNodes | None:
        """The latest report; None: no process has managed nodes of this pool lately."""
        at, report = self._reports.get(pool, (float("-inf"), None))
        return report if self.now() - at < _STALE_S else None

    def most_slots(self, pool: str) -> int:
        """The most slots that the pool's own nodes can ever have; 0: unknown."""
        report = self.of(pool)
        return report.most_slots if report is not None else 0

    def added_to(self, view: wire.PoolView) -> wire.PoolView:
        return replace(view, nodes=self.of(view.pool))
