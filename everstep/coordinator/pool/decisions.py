"""Which trial gets which slots, and which must give slots back.

First the target, what every trial should have: shares of experiments, then sizes of trials. Then the moves that lead
there, and the reasons of those that wait. Pure: the same facts in any order give the same decision; time comes in as
an argument. Knows neither HTTP nor the database."""

from __future__ import annotations

from dataclasses import replace

from everstep.coordinator.pool.claims import LINGER_S, Claims, read_claims
from everstep.coordinator.pool.facts import PoolDecision, PoolFacts
from everstep.coordinator.pool.moves import decide_moves
from everstep.coordinator.pool.order import decide_order, find_impossible
from everstep.coordinator.pool.shares import decide_shares
from everstep.coordinator.pool.sizes import decide_sizes


def decide_pool(facts: PoolFacts) -> PoolDecision:
    impossible = find_impossible(facts)
    never = {each.experiment for each in impossible}
    if never:
        facts = replace(facts, candidates=[each for each in facts.candidates if each.experiment not in never])
    claims = read_claims(facts)
    shares = decide_shares(claims, facts.settle_s)
    sizes = decide_sizes(claims.experiments, shares)
    moves = decide_moves(facts, claims, sizes)
    queue = decide_order(claims, sizes, moves)
    times = [*moves.look_at, *_look_at(facts, claims, is_short=sum(sizes.values()) < _wanted(claims))]
    return PoolDecision(
        give=tuple(moves.give),
        release=tuple(moves.release),
        queue=queue,
        impossible=impossible,
        num_wanted=_wanted(claims),
        shares=shares,
        look_at=min((at for at in times if at > facts.now), default=None),
    )


def _wanted(claims: Claims) -> int:
    return sum(each.demand for each in claims.experiments)


def _look_at(facts: PoolFacts, claims: Claims, *, is_short: bool) -> list[float]:
    lingering = [
        each.candidate.waiting_since + LINGER_S
        for each in claims.trials.values()
        if each.candidate.is_waiting and each.held
    ]
    people = {(each.priority, each.person, each.number) for each in claims.experiments}
    return lingering + ([facts.now + facts.settle_s] if is_short and len(people) > 1 else [])
