"""All processes of a node are gone for certain, and could not report it themselves. Pure."""

from __future__ import annotations

import signal

from everstep.coordinator.roster.changes import exited, node_away
from everstep.coordinator.roster.facts import GONE, Roster
from everstep.wire import WorkerExit


def node_gone(roster: Roster, agent: str, reason: str, now: float) -> Roster:
    """Its workers are not waited for, nor what they may hold."""
    if roster.is_finished:
        return roster
    there = [each.worker for each in roster.workers.values() if each.agent == agent and each.status not in GONE]
    for name in there:
        roster = exited(roster, name, WorkerExit(exit_code=-signal.SIGKILL), now)
    return node_away(roster, agent, reason, now, has_left=True)
