"""What a pool counts for its operators: how long decisions take, and how often trials get and give slots."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from everstep import wire
from everstep.coordinator.pool.facts import Assignment, PoolDecision, TrialKey
from everstep.coordinator.prometheus_text import Histogram

MOVES = ("start", "grow", "shrink", "park", "kill")


class PoolMeasures:
    def __init__(self) -> None:
        self.decisions = Histogram()
        self.moves: Counter[tuple[str, str]] = Counter()  # by pool and kind

    @contextmanager
    def deciding(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.decisions.note(time.perf_counter() - began)

    def note(self, pool: str, decision: PoolDecision, live: Mapping[int, Assignment]) -> None:
        """Count the moves of a decision. Call before it is carried out."""
        for kind, number in moves_of(decision, live).items():
            self.moves[pool, kind] += number


def moves_of(decision: PoolDecision, live: Mapping[int, Assignment]) -> Counter[str]:
    """Each slot that is given or taken, by what it means for its trial."""
    held: Counter[TrialKey] = Counter(each.key for each in live.values())
    moves: Counter[str] = Counter()
    for grant in decision.give:
        key = (grant.candidate.experiment, grant.candidate.trial)
        moves["grow" if held[key] else "start"] += 1
        held[key] += 1
    released = [each for each in decision.release if each.number in live]
    for each in released:
        held[live[each.number].key] -= 1
    for each in released:
        is_left = held[live[each.number].key] > 0
        moves["kill" if each.how == wire.KILL else "shrink" if is_left else "park"] += 1
    return moves
