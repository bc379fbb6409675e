"""Which changes of an experiment's state are allowed, and if not, why. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from everstep import wire
from everstep.coordinator.experiments.facts import DELETED, STOPPING, Experiment
from everstep.errors import CONFLICT, Refused
from everstep.search.events import Operation, SearchOver

# For each action: the states that allow it, and the next state. Archiving changes no state.
_FROM: Mapping[str, tuple[str, ...]] = {
    "pause": (wire.ACTIVE,),
    "activate": (wire.PAUSED,),
    "cancel": (wire.ACTIVE, wire.PAUSED),
    "kill": (wire.ACTIVE, wire.PAUSED, wire.STOPPING_COMPLETED, wire.STOPPING_CANCELED, wire.STOPPING_ERROR),
    "archive": wire.ENDED,
    "unarchive": wire.ENDED,
    "delete": wire.ENDED,
}
_TO = {
    "pause": wire.PAUSED,
    "activate": wire.ACTIVE,
    "cancel": wire.STOPPING_CANCELED,
    "kill": wire.STOPPING_KILLED,
    "delete": DELETED,
}
_DONE: Mapping[str, tuple[str, ...]] = {  # the action has already been done
    "pause": (wire.PAUSED,),
    "activate": (wire.ACTIVE,),
    "cancel": (wire.STOPPING_CANCELED, wire.STOPPING_KILLED, wire.CANCELED),
    "kill": (wire.STOPPING_KILLED, wire.CANCELED),
    "delete": (DELETED,),
}
_PAST = {
    "pause": "paused",
    "activate": "activated",
    "cancel": "canceled; trials save first",
    "kill": "killed",
    "archive": "archived",
    "unarchive": "unarchived",
    "delete": "deleted",
}
_FINAL = {
    wire.STOPPING_COMPLETED: wire.COMPLETED,
    wire.STOPPING_CANCELED: wire.CANCELED,
    wire.STOPPING_KILLED: wire.CANCELED,
    wire.STOPPING_ERROR: wire.ERROR,
}
_STOPPING = {
    wire.COMPLETED: wire.STOPPING_COMPLETED,
    wire.CANCELED: wire.STOPPING_CANCELED,
    wire.ERROR: wire.STOPPING_ERROR,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StateChange:
    state: str
    is_archived: bool
    reason: str


def decide_action(
    number: int, state: str, *, is_archived: bool, action: str, why: str, num_open: int
) -> StateChange | None:
    """None: already done. `num_open`: trials that are not over."""
    if state in _DONE.get(action, ()) or (action == "archive" and is_archived and state in wire.ENDED):
        return None
    if action == "unarchive" and not is_archived and state in wire.ENDED:
        return None
    if state not in _FROM[action]:
        still = f" with {num_open} unfinished trials" if num_open else ""
        text = f"cannot {action} experiment {number}: it is {state}{still}; {_hint(state, action)}"
        raise Refused(text, status=CONFLICT, code="experiment-transition")
    reason = _PAST[action] + (f": {why}" if why else "")
    archived = {"archive": True, "unarchive": False}.get(action, is_archived)
    return StateChange(state=_TO.get(action, state), is_archived=archived, reason=reason)


def _hint(state: str, action: str) -> str:
    if state == DELETED:
        return "a deleted experiment cannot be changed"
    if state in wire.ENDED:
        return "an experiment that is over can be archived, unarchived, deleted or forked"
    if action in ("archive", "unarchive", "delete"):
        return "wait until it is over, or cancel or kill it"
    return (
        "wait until it is over, or kill it"
        if state in STOPPING
        else f"to {action} an experiment, its state must be {' or '.join(_FROM[action])}"
    )


def final_state(state: str) -> str:
    """The state of a stopping experiment once all its trials are over."""
    return _FINAL[state]


def ending_state(final: str, num_open: int) -> str:
    """The state of an experiment whose search is over."""
    return _STOPPING[final] if num_open else final


def ended_if_over(facts: Experiment, operations: Sequence[Operation], num_open: int, now: float) -> Experiment:
    """`num_open`: trials that are not over."""
    if over := next((each for each in operations if isinstance(each, SearchOver)), None):
        facts = replace(facts, state=ending_state(over.state, num_open), reason=over.reason)
    if facts.state in STOPPING and not num_open:
        facts = replace(facts, state=final_state(facts.state))
    if facts.state in wire.ENDED and facts.ended_at is None:
        facts = replace(facts, ended_at=now, needs_sweep=True)
    return facts
