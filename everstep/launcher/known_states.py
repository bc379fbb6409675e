"""What the coordinator knows about this node's workers, so that a report lists only those that changed.

A report vouches for all workers that it does not list. After a failed call, the agent does not know what the
coordinator has received, so the next report lists all workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from everstep.ipc.progress_page import WorkerProgress
from everstep.wire import AgentOrders, AgentReport, WorkerState


@dataclass(frozen=True, slots=True)
class Sighting:
    """One worker, as its agent sees it."""

    is_running: bool
    progress: WorkerProgress

    def state(self, worker: str, now: float) -> WorkerState:
        progress = self.progress
        return WorkerState(
            worker=worker,
            is_running=self.is_running,
            has_progress=bool(progress.since),  # a script without an engine writes no progress
            step=progress.step,
            phase=progress.phase,
            phase_s=max(0.0, now - progress.since) if progress.since else 0.0,
            longest_step_s=progress.longest_step_s,
            longest_wait_s=progress.longest_wait_s,
            state_bytes=progress.state_bytes,
        )


class KnownStates:
    def __init__(self) -> None:
        self._number = self._after = 0
        self._known: Mapping[str, Sighting] = {}

    def next_report(self, report: AgentReport, seen: Mapping[str, Sighting], now: float) -> AgentReport:
        known = self._known if self._after else {}
        changed = [each.state(name, now) for name, each in seen.items() if known.get(name) != each]
        gone = [WorkerState(worker=name, is_running=False) for name in known if name not in seen]
        after, self._after = self._after, 0  # until it is answered
        self._number, self._known = self._number + 1, seen
        return replace(report, workers=[*changed, *gone], number=self._number, after=after)

    def answered(self, orders: AgentOrders) -> None:
        self._after = 0 if orders.wants_all else self._number
