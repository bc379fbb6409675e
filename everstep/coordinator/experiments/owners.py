"""Who owns an experiment or a model, and who may change it: its owner and administrators. Anyone may view it. Pure."""

from __future__ import annotations

from everstep.coordinator.experiments.facts import Experiment
from everstep.errors import Refused
from everstep.wire.tokens import ALL, Token

_FORBIDDEN = 403
ITSELF = Token(role=ALL, word="")  # the coordinator, which no caller is


def may_change(facts: Experiment, caller: Token) -> bool:
    """An experiment without an owner may be changed by everyone whose role allows it. A trial may only change what it
    has created."""
    if caller.trial:
        return facts.created_by == caller.trial
    return caller.is_administrator or facts.owner in ("", caller.person)


def check_may_change(facts: Experiment, caller: Token) -> None:
    if not may_change(facts, caller):
        whose = f"belongs to {facts.owner}; ask {facts.owner} or an administrator" if facts.owner else "has no owner"
        raise Refused(f"experiment {facts.number} {whose}", status=_FORBIDDEN, code="experiment-of-another")


def check_owner(what: str, owner: str, caller: Token, *, code: str) -> None:
    """For anything else that people own. Trials cannot call for it."""
    if not (caller.is_administrator or owner in ("", caller.person)):
        raise Refused(f"{what} belongs to {owner}; ask {owner} or an administrator", status=_FORBIDDEN, code=code)
