"""What follows from an attempt to deliver: done, again later, or given up. Pure.

Pauses double up to an hour, each shortened by chance, so that many deliveries do not come together. An answer other
than 2xx is a failure, as is silence. A delivery is given up a day after its event, or at once if its host is no longer
allowed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from everstep.coordinator.webhooks.facts import Delivery
from everstep.wire.webhooks import DELIVERED, GIVEN_UP

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 3600.0
GIVE_UP_S = 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PostAnswer:
    """What a receiver answered. `status` 0: nothing, for this reason. `is_final`: another attempt cannot succeed."""

    status: int = 0
    reason: str = ""
    is_final: bool = False

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300


def decide_attempt(delivery: Delivery, answer: PostAnswer, now: float, chance: float) -> Delivery:
    """The delivery after an attempt. `chance`: from 0 to 1."""
    tried = replace(delivery, num_attempts=delivery.num_attempts + 1, status=answer.status)
    if answer.is_good:
        return replace(tried, state=DELIVERED, reason="", ended_at=now)
    if answer.is_final:
        return replace(tried, state=GIVEN_UP, reason=answer.reason, ended_at=now)
    next_at = now + pause_s(delivery.num_attempts, chance)
    if next_at > delivery.created_at + GIVE_UP_S:
        passed_s = now - delivery.created_at
        reason = f"{answer.reason}; given up after {tried.num_attempts} attempts in {passed_s:.0f} s"
        return replace(tried, state=GIVEN_UP, reason=reason, ended_at=now)
    return replace(tried, next_at=next_at, reason=answer.reason)


def pause_s(attempt: int, chance: float) -> float:
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt, 32)) * (0.5 + 0.5 * chance)
