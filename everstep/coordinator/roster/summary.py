"""A job as a row of the list of jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from everstep.coordinator.roster.facts import Roster, Sign
from everstep.wire import JobSummary
from everstep.wire.page import FINISHED, REGROUPING, RUNNING, STOPPED, WAITING


@dataclass(frozen=True, kw_only=True, slots=True)
class PastFacts:
    """What the roster does not know, from the job's marks."""

    created_at: float = 0.0  # 0: not known
    ended_at: float | None = None
    num_deaths: int = 0
    step: int = 0  # of the latest mark


def state_of(generation: int, *, is_closed: bool, is_stopped: bool, is_finished: bool) -> str:
    if is_stopped or is_finished:
        return FINISHED if is_finished else STOPPED
    if generation == 0:
        return WAITING
    return REGROUPING if is_closed else RUNNING


def summary_of(roster: Roster, signs: Mapping[str, Sign], reason: str, past: PastFacts) -> JobSummary:
    generation, attempt = roster.generation, roster.attempt
    is_classic = generation.number == 0 and attempt.is_open
    state = state_of(
        generation.number,
        is_closed=generation.is_closed,
        is_stopped=roster.is_stopped,
        is_finished=roster.is_finished,
    )
    return JobSummary(
        job=roster.job,
        name=roster.name,
        state=RUNNING if is_classic and state == WAITING else state,
        reason=roster.reason if roster.is_over else reason,
        created_at=past.created_at,
        ended_at=past.ended_at if roster.is_over else None,
        num_workers=attempt.size if is_classic else len(generation.members),
        step=committed_step(roster, signs) or past.step,
        generation=generation.number,
        num_deaths=past.num_deaths,
        num_restarts=roster.num_restarts,
    )


def committed_step(roster: Roster, signs: Mapping[str, Sign]) -> int:
    """As far as members of the latest generation have reported it."""
    workers = roster.workers
    return max(
        (max(workers[name].step, signs[name].step if name in signs else 0) for name in roster.generation.ranks),
        default=0,
    )
