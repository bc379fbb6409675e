"""A job that was over waits for nodes and workers again: a trial of an experiment has another try. Pure."""

from __future__ import annotations

from dataclasses import replace

from everstep.coordinator.roster.changes import close_attempt
from everstep.coordinator.roster.facts import Roster


def reopen(roster: Roster, reason: str, now: float) -> Roster:
    if not roster.is_over:
        return roster
    roster = replace(roster, is_stopped=False, is_finished=False, reason="", nodes_at=now, closed_at=now)
    return close_attempt(roster, reason, is_restart=False) if roster.attempt.is_open else roster
