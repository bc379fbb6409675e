"""The time limit of an experiment: how long it has run, and when its time is up. Pure.

An experiment runs from its first trial's start on. Pauses do not count; waiting for slots does, and so does the time
during which the coordinator is away, because trials train then."""

from __future__ import annotations

from dataclasses import replace

from everstep import wire
from everstep.coordinator.experiments.facts import Experiment
from everstep.errors import CONFLICT, Refused


def ran_s(facts: Experiment, now: float) -> float:
    """`now`: see `steady_time`."""
    return facts.ran_s + (max(0.0, now - facts.runs_since) if facts.runs_since is not None else 0.0)


def timed(facts: Experiment, now: float) -> Experiment:
    """The experiment with its clock stopped or running, depending on its state."""
    runs = facts.state == wire.ACTIVE and facts.started_at is not None
    if runs == (facts.runs_since is not None):
        return facts
    return replace(facts, ran_s=ran_s(facts, now), runs_since=now if runs else None)


def ends_at(facts: Experiment) -> float | None:
    """When its time will be up, if nothing changes. None: never."""
    limit_s = facts.scheduling.time_limit_s
    return facts.runs_since + limit_s - facts.ran_s if limit_s and facts.runs_since is not None else None


def stopped_if_late(facts: Experiment, now: float) -> Experiment:
    """Stop the experiment as if it were canceled: its trials save, and nothing has failed."""
    at = ends_at(facts)
    if at is None or now < at:
        return facts
    limit_s = facts.scheduling.time_limit_s
    reason = f"its time limit of {limit_s:g} s is up: it ran for {ran_s(facts, now):.0f} s; trials save first"
    return replace(facts, state=wire.STOPPING_CANCELED, reason=reason)


def check_limit(facts: Experiment, now: float) -> None:
    """Refuse a limit that would end the experiment at once."""
    used_s, limit_s = ran_s(facts, now), facts.scheduling.time_limit_s
    if not limit_s or used_s < limit_s:
        return
    raise Refused(
        f"experiment {facts.number} has run for {used_s:.0f} s: a time limit of {limit_s:g} s would end it at once; "
        "give a longer one, or cancel it",
        status=CONFLICT,
        code="time-limit-passed",
    )
