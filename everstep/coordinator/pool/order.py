"""The queue: which trials wait for slots, in which order, and why; and which requests can never be met."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from everstep.coordinator.experiments.seam import Candidate
from everstep.coordinator.pool.claims import Claims, ExperimentClaim, TrialClaim
from everstep.coordinator.pool.facts import Assignment, Impossible, PoolFacts, QueuePlace
from everstep.coordinator.pool.moves import Moves
from everstep.coordinator.pool.sizes import Sizes
from everstep.wire.pool import MOST_RUNNING


def decide_order(claims: Claims, sizes: Sizes, moves: Moves) -> tuple[QueuePlace, ...]:
    """Trials whose slots are being freed come first. Then priority, recent use for their weight, and age decide."""
    waiting: list[tuple[tuple[object, ...], TrialClaim, str]] = []
    num_running = sum(each.runs for each in claims.trials.values())
    for experiment in claims.experiments:
        sentences: dict[tuple[bool, frozenset[str]], str] = {}
        turn = _turn(experiment, claims)
        for claim in experiment.trials:
            if claim.runs or claim.key in moves.given:
                continue
            is_next = sizes[claim.key] > 0
            told = (is_next, claim.candidate.excluded)
            if told not in sentences:
                sentences[told] = _sentence(experiment, claim, claims, sizes, moves, is_next, num_running)
            waiting.append(((not is_next, *turn, claim.order), claim, sentences[told]))
    waiting.sort(key=lambda each: each[0])
    waiting += [((), each, _beyond(each)) for each in claims.beyond]
    waiting += [((), each, _nowhere(each)) for each in claims.nowhere]
    return tuple(
        QueuePlace(experiment=claim.candidate.experiment, trial=claim.candidate.trial, position=position, reason=reason)
        for position, (_, claim, reason) in enumerate(waiting, 1)
    )


def _beyond(claim: TrialClaim) -> str:
    return f"needs {_slots(claim.candidate.min_slots)}; a pool runs at most {MOST_RUNNING} trials at a time"


def _nowhere(claim: TrialClaim) -> str:
    need = f"needs {_slots(claim.candidate.min_slots)}{_not_on(claim)}"
    return f"{need}; the pool has no other node now: add one, or cancel the experiment"


def _not_on(claim: TrialClaim) -> str:
    excluded = claim.candidate.excluded
    return f", not on {', '.join(sorted(excluded))} (log policy)" if excluded else ""


def _turn(experiment: ExperimentClaim, claims: Claims) -> tuple[object, ...]:
    used = claims.used_by_person.get(experiment.person, 0.0) / claims.person(experiment.person).weight
    return (experiment.priority, used, experiment.used / experiment.weight, experiment.queued_at)


def _sentence(
    experiment: ExperimentClaim,
    claim: TrialClaim,
    claims: Claims,
    sizes: Sizes,
    moves: Moves,
    is_next: bool,
    num_running: int,
) -> str:
    kinds = {each.kind for each in claims.nodes.values()}
    is_choosy = bool(experiment.kind) and kinds != {experiment.kind}  # of one kind only, it need not be named
    need = f"needs {_slots(claim.least)}" + (f" of kind {experiment.kind}" if is_choosy else "")
    need += _not_on(claim)
    num_free = moves.num_free[experiment.kind] if experiment.kind else moves.num_free.total()
    free = f"{num_free} {'is' if num_free == 1 else 'are'} free"
    if is_next and claim.key in moves.blocked:
        return f"{need}; {free}; others of {_whose(experiment, claims)} give theirs back first"
    if is_next:
        return f"{need}; {free}; {_who_gives(experiment, claims, moves)}"
    if (limit := _limit(experiment, claim, claims, sizes)) is not None:
        return f"{need}; {limit}"
    there = claims.open_slots[experiment.kind] if experiment.kind else claims.open_slots.total()
    if there < claim.least:
        return f"{need}; the pool has {there} now"
    return f"{need}; {free}; {num_running} other {'trial is' if num_running == 1 else 'trials are'} running"


def _limit(experiment: ExperimentClaim, claim: TrialClaim, claims: Claims, sizes: Sizes) -> str | None:
    its = sum(sizes[each.key] for each in experiment.trials)
    if experiment.limit is not None and its + claim.least > experiment.limit:
        return f"its experiment may have {_slots(claim.candidate.experiment_max_slots)} (max_slots)"
    quota = claims.person(experiment.person).quota
    if quota is None:
        return None
    theirs = [each for other in claims.experiments if other.person == experiment.person for each in other.trials]
    used = sum(sizes[each.key] + len(each.fixed) for each in theirs)
    return f"the quota of {experiment.person} is {_slots(quota)}" if used + claim.least > quota else None


def _whose(experiment: ExperimentClaim, claims: Claims) -> str:
    quota = claims.person(experiment.person).quota
    return "its experiment" if quota is None else f"{experiment.person or 'its person'} (quota: {_slots(quota)})"


def _who_gives(experiment: ExperimentClaim, claims: Claims, moves: Moves) -> str:
    """e9 (lower priority) gives up one after its step."""
    if not moves.given_up:
        return "others are giving theirs back" if claims.ending.total() else "it is next in line"
    number, givers = next(iter(moves.given_up.items()))
    if givers[0].candidate.is_waiting:
        why = "waits for the search"
    elif givers[0].candidate.priority > experiment.priority:
        why = "lower priority"
    else:
        why = "more than its share"
    return f"e{number} ({why}) gives up {'one' if len(givers) == 1 else len(givers)} after its step"


def _slots(number: int) -> str:
    return "1 slot" if number == 1 else f"{number} slots"


def find_impossible(facts: PoolFacts) -> tuple[Impossible, ...]:
    """Requests that the pool, as large as it can ever be, cannot meet. One for each experiment."""
    found: dict[int, Impossible] = {}
    for each in facts.candidates:
        if each.pool == facts.pool and each.experiment not in found and (reason := _why_never(each, facts)):
            found[each.experiment] = Impossible(experiment=each.experiment, reason=reason)
    return tuple(found[number] for number in sorted(found))


def _why_never(candidate: Candidate, facts: PoolFacts) -> str | None:
    least, kind = candidate.min_slots, candidate.kind
    most = facts.most_slots
    if kind and facts.most_of_kind is not None:
        of_kind = facts.most_of_kind.get(kind, 0)
        most = of_kind if most is None else min(of_kind, most)
    quota = facts.people.of(candidate.person).quota
    if most is not None and least > most:
        suffix = f" of kind {kind}" if kind else ""
        return f"needs {_slots(least)}{suffix} for a trial: pool {facts.pool} has at most {most}"
    if quota is not None and least > quota:
        return f"needs {_slots(least)} for a trial: the quota of {candidate.person} is {_slots(quota)}"
    if 0 < candidate.experiment_max_slots < least:
        return f"needs {_slots(least)} for a trial: max_slots of the experiment is {candidate.experiment_max_slots}"
    return None


def in_queue(candidates: Iterable[Candidate], live: Iterable[Assignment]) -> Sequence[Candidate]:
    """Trials that want slots and have none, by rank."""
    held = {each.key for each in live}
    found = [each for each in candidates if not each.is_waiting and (each.experiment, each.trial) not in held]
    return sorted(found, key=lambda each: (each.rank, each.experiment, each.trial))
