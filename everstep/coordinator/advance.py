"""Take all decisions that are due, one after the other, until none changes anything.

Pure: the same facts at the same moment give the same roster, and the time at which to look again."""

from __future__ import annotations

from collections.abc import Mapping

from everstep.coordinator import changes
from everstep.coordinator.ending import decide_end, decide_leaving
from everstep.coordinator.forming import decide_generation
from everstep.coordinator.health import decide_hang, decide_health, decide_stall
from everstep.coordinator.roster import Roster, Sign


def advance(roster: Roster, signs: Mapping[str, Sign], now: float) -> tuple[Roster, str, float | None]:
    """What follows from what happened: ends, releases, new generations. Also the last reason and the next look."""
    while True:
        before = roster
        end = decide_end(roster)
        leaving = decide_leaving(roster)
        if leaving.released:
            roster = changes.release(roster, leaving.released, leaving.reason)
        if end.is_stopped or end.is_finished:
            ending = changes.finish if end.is_finished else changes.stop
            roster = ending(roster, end.reason)
        forming = decide_generation(roster, signs, now)
        if forming.breaks:
            roster = changes.close(roster, forming.reason, now)
        for name in forming.lost:
            roster = changes.lose(roster, name, forming.reason, now)
        if forming.recalled:
            roster = changes.recall(roster, forming.recalled, now)
        if forming.formed:
            roster = changes.form(roster, forming.formed, now)
        if roster is before:
            return roster, forming.reason, forming.next_look


def examine(roster: Roster, signs: Mapping[str, Sign], now: float) -> tuple[Roster, float | None]:
    """What follows from what did not happen: who is lost, hangs, or waits in vain. Also the next look."""
    if roster.is_over:
        return roster, None
    health = decide_health(roster, signs, now)
    for name, why in health.lost.items():
        roster = changes.lose(roster, name, why, now)
    hang = decide_hang(roster, signs, now)
    if hang.worker:
        roster = changes.lose(roster, hang.worker, hang.reason, now, wants_stacks=True)
    stall = decide_stall(roster, signs, now)
    if stall.is_stalled:
        roster = changes.close(roster, stall.reason, now, must_probe=True)
    looks = [each.next_look for each in (health, hang, stall) if each.next_look is not None]
    return roster, min(looks, default=None)
