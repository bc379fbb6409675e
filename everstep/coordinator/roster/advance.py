"""Take all decisions that are due, one after the other, until none changes anything.

Pure: the same facts at the same moment give the same roster, and the time at which to look again."""

from __future__ import annotations

from collections.abc import Mapping

from everstep.coordinator.roster import changes
from everstep.coordinator.roster.ending import decide_end, decide_leaving
from everstep.coordinator.roster.facts import NodeSign, Roster, Sign
from everstep.coordinator.roster.forming import decide_generation
from everstep.coordinator.roster.health import decide_hang, decide_health, decide_nodes, decide_silence, decide_stall
from everstep.coordinator.roster.starting import Starting, decide_attempt, end_attempt


def advance(roster: Roster, signs: Mapping[str, Sign], now: float) -> tuple[Roster, str, float | None]:
    """What follows from what happened: ends, releases, new generations. Also the last reason and the next look."""
    while True:
        before = roster
        end = decide_end(roster)
        leaving = decide_leaving(roster)
        if leaving.are_sent:
            roster = changes.send_away(roster, leaving.released, leaving.reason, now)
        elif leaving.released:
            roster = changes.release(roster, leaving.released, leaving.reason)
        if end.is_stopped or end.is_finished:
            ending = changes.finish if end.is_finished else changes.stop
            roster = ending(roster, end.reason)
        starting = decide_attempt(roster, now)
        roster = _start(roster, starting, now)
        forming = decide_generation(roster, signs, now)
        if forming.breaks:
            roster = changes.close(roster, forming.reason, now)
        for name in forming.lost:
            roster = changes.lose(roster, name, forming.reason, now)
        if forming.is_state_lost:
            roster = changes.lose_state(roster, forming.reason, now)
        if forming.recalled:
            roster = changes.recall(roster, forming.recalled, now)
        if forming.formed:
            roster = changes.form(roster, forming.formed, now)
        if roster is before:
            looks = [each.next_look for each in (starting, forming) if each.next_look is not None]
            is_classic = roster.nodes and not roster.is_regrouping
            return roster, starting.reason if is_classic else forming.reason, min(looks, default=None)


def _start(roster: Roster, starting: Starting, now: float) -> Roster:
    if starting.closes:
        roster = changes.close_attempt(roster, starting.reason, is_restart=starting.is_restart)
    if starting.stops:
        roster = changes.stop(roster, starting.reason)
    if starting.begins_on:
        roster = changes.begin_attempt(roster, starting.begins_on, starting.reason, now)
    for node in starting.joining:
        roster = changes.add_node(roster, node)
    return roster


def examine(
    roster: Roster, signs: Mapping[str, Sign], node_signs: Mapping[str, NodeSign], now: float
) -> tuple[Roster, float | None]:
    """What follows from what did not happen: which workers are lost, hang, or stall. Also the next look."""
    nodes = decide_nodes(roster, node_signs, now)
    for name, why in nodes.lost.items():
        roster = changes.node_away(roster, name, why, now)
        if node_signs[name].is_cut and not roster.is_over:  # its process is gone, and its workers with it
            for worker in [each for each in roster.workers.values() if each.agent == name and each.incarnation]:
                roster = changes.lose(roster, worker.worker, f"its agent {name} is gone", now)
    if roster.is_over:  # the coordinator's host waits until all nodes know
        return roster, nodes.next_look
    silence = decide_silence(roster, node_signs, now)
    if silence.is_found:
        ending = end_attempt(roster, silence.reason)
        roster = changes.close_attempt(roster, ending.reason, is_restart=ending.is_restart, wants_stacks=True)
        roster = changes.stop(roster, ending.reason) if ending.stops else roster
    health = decide_health(roster, signs, now)
    for name, why in health.lost.items():
        roster = changes.lose(roster, name, why, now)
    hang = decide_hang(roster, signs, now)
    for name, why in hang.lost.items():
        roster = changes.lose(roster, name, why, now, wants_stacks=True)
    stall = decide_stall(roster, signs, now)
    if stall.is_found:
        roster = changes.close(roster, stall.reason, now, must_probe=True)
    decided = (nodes, silence, health, hang, stall)
    looks = [each.next_look for each in decided if each.next_look is not None]
    return roster, min(looks, default=None)
