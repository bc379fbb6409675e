"""After a group is formed: say hello, agree on which member holds the newest state, bring all others to it.

The most advanced survivor leads: newest settled generation, then a finished last step, then most steps;
the lowest rank breaks ties. Where all are at the same step and none is new, nothing is sent. `decide_leader` is
pure; the hellos are all it knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from everstep.engine.backend import BackendFacts
from everstep.engine.group import Group
from everstep.errors import PeerLost, PermanentError, StateMismatch


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberHello:
    """What a member says to the others when a generation begins."""

    worker: str
    job: str
    settled: int  # the last generation in which it held the state; 0: never
    step: int  # committed steps
    is_dirty: bool  # its last update broke off half-way
    is_unfinished: bool  # it committed its last step, but what its script does after that broke off
    layout: str  # digest of the bucket layout
    num_micro_batches: int
    is_exact: bool
    torch: str
    backend: BackendFacts
    is_agreeing: bool  # it came here while agreeing on a value: its script is between two steps
    neighbors: list[int]  # ranks whose memory it reads
    inlet: list[Any]  # where it accepts a state (inlet.py)
    held: list[int]  # micro-batches of the next step that it has computed
    answers: dict[str, list[Any]]  # agreed on since its last commit, for members that missed one
    num_passed: int = 0  # steps since its last commit that did not count


@dataclass(frozen=True, kw_only=True, slots=True)
class Leadership:
    leader: int
    receivers: tuple[int, ...]  # ranks that get the leader's state
    reason: str


def exchange(hello: MemberHello, group: Group) -> list[MemberHello]:
    raws: list[Any] = [json.loads(raw) for raw in group.gather(json.dumps(asdict(hello)).encode())]
    return [MemberHello(**{**raw, "backend": BackendFacts(**raw["backend"])}) for raw in raws]


def decide_leader(hellos: Sequence[MemberHello], continues: int) -> Leadership:
    clean = [rank for rank, hello in enumerate(hellos) if not hello.is_dirty]
    if not clean:
        raise PermanentError("no worker holds a whole state: every update broke off half-way", code="no-whole-state")
    leader = max(
        clean, key=lambda rank: (hellos[rank].settled, not hellos[rank].is_unfinished, hellos[rank].step, -rank)
    )
    lead = hellos[leader]
    if lead.settled < continues:
        raise PermanentError(
            f"no member settled in generation {continues} or later; the newest is {lead.worker} with {lead.settled}",
            code="no-member-settled",
        )
    behind = tuple(rank for rank, hello in enumerate(hellos) if rank != leader and not _is_current(hello, lead))
    for rank in behind:
        gap = lead.step - hellos[rank].step
        is_taken_back = hellos[rank].is_unfinished and gap == -1
        if hellos[rank].settled == lead.settled > 0 and not 0 <= gap <= 1 and not is_taken_back:
            raise StateMismatch(
                f"{lead.worker} is at step {lead.step}, {hellos[rank].worker} at {hellos[rank].step}: "
                "survivors of one generation may differ by one step at most",
                code="survivors-apart",
            )
    names = ", ".join(hellos[rank].worker for rank in behind)
    return Leadership(
        leader=leader,
        receivers=behind,
        reason=f"{lead.worker} leads at step {lead.step}" + (f" and sends its state to {names}" if behind else ""),
    )


def _is_current(hello: MemberHello, lead: MemberHello) -> bool:
    is_good = not hello.is_dirty and not hello.is_unfinished
    return lead.settled > 0 and hello.settled == lead.settled and hello.step == lead.step and is_good


def check_fit(hellos: Sequence[MemberHello], leader: int, rank: int) -> None:
    """All must be built like the leader, of one job."""
    lead = hellos[leader]
    if strangers := [f"{each.worker} is of job {each.job!r}" for each in hellos if each.job != hellos[rank].job]:
        raise PeerLost(f"{strangers[0]}, {hellos[rank].worker} of {hellos[rank].job!r}", code="member-of-another-job")
    for other, hello in enumerate(hellos):
        differences = [
            f"{name}: {getattr(hello, name)} against {getattr(lead, name)}"
            for name in ("layout", "num_micro_batches", "is_exact", "torch")
            if getattr(hello, name) != getattr(lead, name)
        ]
        if not differences:
            continue
        sentence = f"{hello.worker} does not fit {lead.worker}: {'; '.join(differences)}"
        if other == rank:
            raise StateMismatch(
                sentence, hint="give all workers the same script, arguments and torch", code="worker-does-not-fit"
            )
        raise PeerLost(sentence, code="peer-does-not-fit")
