"""How an experiment shares its pool, in words. Pure."""

from __future__ import annotations

from everstep import wire
from everstep.wire.pool import DEFAULT_POOL, DEFAULT_PRIORITY


def scheduling_text(view: wire.ExperimentView) -> str:
    told = view.scheduling
    most = f", at most {told.max_slots} slots" if told.max_slots else ""
    return f"{told.pool}, priority {told.priority}, weight {told.weight:g}{most}{_time(view)}"


def _time(view: wire.ExperimentView) -> str:
    limit_s = view.scheduling.time_limit_s
    return f", ran {view.ran_s:.0f} of {limit_s:g} s" if limit_s else ""


def unusual_scheduling(view: wire.ExperimentView) -> str:
    """What is not as it would be anyway: owner, pool, priority, weight, limits."""
    told = view.scheduling
    parts = [
        f"owner {view.owner}" if view.owner else "",
        f"pool {told.pool}" if told.pool != DEFAULT_POOL else "",
        f"priority {told.priority}" if told.priority != DEFAULT_PRIORITY else "",
        f"weight {told.weight:g}" if told.weight != 1.0 else "",
        f"at most {told.max_slots} slots" if told.max_slots else "",
        f"time limit {told.time_limit_s:g} s" if told.time_limit_s else "",
    ]
    return ", ".join(part for part in parts if part)
