"""Job runs: what their states mean for the job, and which to add or end. Pure.

The run of rank 0 hosts the coordinator: its end is the job's."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass

from everstep.errors import UsageError
from everstep.platforms.base import JobStatus, NodeStatus, State

_STATES: dict[str, State] = {
    "ACCEPTED": "pending",
    "IN_PROGRESS": "running",
    "CANCELING": "running",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "NEEDS_ATTENTION": "failed",
    "CANCELED": "canceled",
    "DELETED": "canceled",
}
OVER = ("SUCCEEDED", "FAILED", "NEEDS_ATTENTION", "CANCELED", "DELETED")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunNames:
    """Of the runs: ADS's way."""

    main: str
    worker: str  # before its number

    def of(self, rank: int) -> str:
        return self.main if rank == 0 else f"{self.worker}-{rank - 1}"

    def rank_of(self, name: str) -> int | None:
        if name == self.main:
            return 0
        found = re.fullmatch(rf"{re.escape(self.worker)}-(\d+)", name)
        return int(found[1]) + 1 if found else None


@dataclass(frozen=True, kw_only=True, slots=True)
class OciRun:
    id: str
    name: str
    rank: int
    state: str  # the service's word
    details: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def is_wanted(self) -> bool:
        return self.state in ("ACCEPTED", "IN_PROGRESS")

    @property
    def status(self) -> NodeStatus:
        return NodeStatus(
            name=self.name, state=_STATES.get(self.state, "unknown"), where=self.id, reason=self.details or self.state
        )


def decide_status(runs: Sequence[OciRun]) -> JobStatus:
    nodes = tuple(run.status for run in runs)
    main = next((run for run in runs if run.rank == 0), None)
    if main is None:
        return JobStatus(state="unknown", reason="the service has no run of rank 0", nodes=nodes)
    told = f"{main.name}: {main.details or main.state}"
    if main.is_over:
        left = [run.name for run in runs if not run.is_over]
        return JobStatus(
            state=main.status.state, reason=f"{told}; not over yet: {', '.join(left)}" if left else told, nodes=nodes
        )
    num_running = sum(run.state == "IN_PROGRESS" for run in runs)
    num_up = sum(not run.is_over for run in runs)
    state: State = "running" if main.state != "ACCEPTED" else "pending"
    return JobStatus(state=state, reason=f"{num_running} of {num_up} runs in progress; {told}", nodes=nodes)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaleOrders:
    reason: str
    add: tuple[int, ...] = ()  # ranks
    cancel: tuple[OciRun, ...] = ()


def decide_scale(runs: Sequence[OciRun], num_wanted: int) -> ScaleOrders:
    """The youngest leave; rank 0 never does. New ones get ranks that no run of the job ever had."""
    there = sorted((run for run in runs if run.is_wanted), key=lambda run: run.rank)
    if not there or there[0].rank != 0:
        message = "the run of rank 0, which hosts the coordinator, is over"
        raise UsageError(message, hint="submit the job again", code="oci-main-run-over")
    if len(there) > num_wanted:
        spare = tuple(there[max(1, num_wanted) :])
        named = ", ".join(run.name for run in spare)
        return ScaleOrders(reason=f"{len(there)} runs, {num_wanted} wanted: {named} may leave", cancel=spare)
    first = max(run.rank for run in runs) + 1
    ranks = tuple(range(first, first + num_wanted - len(there)))
    return ScaleOrders(reason=f"{len(there)} runs, {num_wanted} wanted: {len(ranks)} more", add=ranks)


@dataclass(frozen=True, kw_only=True, slots=True)
class EndOrders:
    reason: str
    cancel: tuple[OciRun, ...] = ()
    is_done: bool = False
    is_hopeless: bool = False


def decide_end(runs: Sequence[OciRun], *, asked: Set[str], waited_s: float, patience_s: float) -> EndOrders:
    """Rank 0 first: it hosts the coordinator, which notifies the others. `asked`: ids of runs that were
    canceled already."""
    left = sorted((run for run in runs if not run.is_over), key=lambda run: run.rank)
    if not left:
        return EndOrders(reason="all runs are over", is_done=True)
    shown = ", ".join(f"{run.name} is {run.state}" for run in left)
    if waited_s > patience_s:
        return EndOrders(reason=f"not over after {patience_s:.0f} s: {shown}", is_hopeless=True)
    return EndOrders(
        reason=f"waiting for {len(left)} runs to end: {shown}",
        cancel=tuple(run for run in left if run.is_wanted and run.id not in asked),
    )
