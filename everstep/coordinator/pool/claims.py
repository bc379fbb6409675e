"""What each trial has and could use, read from the facts: what all decisions of the pool start from.

Slots on closed nodes serve the trials that hold them, and no others: `fixed`. They are not shared out. Slots on
nodes that must be emptied are worth nothing: `leaving`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter

from everstep.coordinator.experiments.seam import Candidate
from everstep.coordinator.pool.facts import (
    GIVEN,
    LIVE,
    Assignment,
    NodeFacts,
    PoolFacts,
    TrialKey,
    TrialSpeed,
)
from everstep.coordinator.pool.people import People, Person
from everstep.coordinator.pool.speeds import REGROUP_S, SpeedCurve, assumed_speed
from everstep.wire.pool import MOST_RUNNING

# A trial that waits for the search keeps a slot that another experiment wants for this long. A trial of its own
# experiment gets it at once: most likely, it is the one that the search waits for.
LINGER_S = 0.2
EMPTY_S = 5.0  # before a node's time ends, its trials leave; if they need longer, they have the grace of its agent
_UNMEASURED = TrialSpeed()


@dataclass(slots=True, eq=False)
class TrialClaim:
    key: TrialKey
    candidate: Candidate
    speed: TrialSpeed = _UNMEASURED
    curve: SpeedCurve | None = None
    held: list[Assignment] = field(default_factory=list)
    fixed: list[Assignment] = field(default_factory=list)
    leaving: list[Assignment] = field(default_factory=list)
    num_ending: int = 0
    least: int = 0  # open slots that it needs to run
    most: int = 0  # open slots that it can use

    @property
    def num_live(self) -> int:
        return len(self.held) + len(self.fixed) + len(self.leaving) + self.num_ending

    @property
    def runs(self) -> bool:
        return bool(self.held or self.fixed)

    @property
    def is_ending(self) -> bool:
        """Whether it must end everywhere before it may start again."""
        return not self.runs and self.num_live > 0

    @property
    def order(self) -> tuple[tuple[int, ...], int, int]:
        return (self.candidate.rank, self.candidate.experiment, self.candidate.trial)

    def speed_at(self, slots: int) -> float:
        """Its speed on this many slots: in batches per second if measured, else as a multiple of one slot's speed."""
        return self.curve.at(slots) if self.curve is not None else assumed_speed(slots)

    def saved_s(self, now: int, then: int) -> float | None:
        """Seconds saved on the way to its target with `then` slots instead of `now`; None: unknown."""
        left = self.candidate.batches_left
        if left is None or self.curve is None or now < 1 or then < 1:
            return None
        return left / self.curve.at(now) - left / self.curve.at(then)

    @property
    def move_s(self) -> float:
        """How many seconds it costs to move a slot to this trial."""
        return self.speed.start_s + 2 * REGROUP_S


@dataclass(slots=True, eq=False)
class ExperimentClaim:
    number: int
    person: str
    priority: int
    weight: float
    limit: int | None  # open slots, by its max_slots
    kind: str
    used: float  # slot-seconds lately
    trials: list[TrialClaim]  # in the order in which they may start
    num_held: int = 0
    queued_at: float = 0.0
    least_sums: list[int] = field(default_factory=list)
    most_sums: list[int] = field(default_factory=list)

    def add_up(self) -> None:
        self.least_sums = [0, *accumulate(each.least for each in self.trials)]
        self.most_sums = [0, *accumulate(each.most for each in self.trials)]
        self.queued_at = min(each.candidate.queued_at for each in self.trials)
        self.num_held = sum(len(each.held) for each in self.trials)

    @property
    def demand(self) -> int:
        most = self.most_sums[-1]
        return most if self.limit is None else min(most, self.limit)


@dataclass(slots=True, eq=False)
class Claims:
    experiments: list[ExperimentClaim]
    trials: dict[TrialKey, TrialClaim]  # all
    waiting: list[TrialClaim]  # for the search, longer than LINGER_S: they keep what no other trial wants
    nodes: dict[str, NodeFacts]
    open_slots: Counter[str]  # by kind
    free: dict[str, list[int]]  # by agent
    ending: Counter[str]  # slots that are being given back, by kind
    people: People
    used_by_person: Mapping[str, float]
    taken: Counter[int | str]  # slots, by experiment and person, also those that are being given back
    beyond: list[TrialClaim] = field(default_factory=list)  # would be more trials at a time than a pool runs
    nowhere: list[TrialClaim] = field(default_factory=list)  # log policies exclude all nodes that are here now

    def person(self, name: str) -> Person:
        return self.people.of(name)


def read_claims(facts: PoolFacts) -> Claims:
    candidates = {(each.experiment, each.trial): each for each in facts.candidates if each.pool == facts.pool}
    trials = {key: TrialClaim(key, candidate) for key, candidate in candidates.items()}
    nodes = {each.agent: each for each in sorted(facts.nodes, key=lambda each: each.agent)}
    leaving = {each.agent for each in facts.nodes if is_leaving(each, facts.now)}
    is_open = {each.agent: each.num_slots for each in facts.nodes if each.is_open and each.agent not in leaving}
    taken: dict[str, set[int]] = defaultdict(set)
    open_slots: Counter[str] = Counter()
    ending: Counter[str] = Counter()
    by_experiment: Counter[int] = Counter()
    for agent, num_slots in is_open.items():
        open_slots[nodes[agent].kind] += num_slots
    for each in sorted(facts.assignments, key=attrgetter("number")):
        if each.state not in LIVE or each.pool != facts.pool:
            continue
        taken[each.agent].add(each.slot)
        claim = trials.get((each.experiment, each.trial))
        by_experiment[each.experiment] += 1
        is_usable = each.slot < is_open.get(each.agent, 0)
        if each.state != GIVEN:
            ending[nodes[each.agent].kind if is_usable else ""] += is_usable
        elif claim is None and is_usable:
            open_slots[nodes[each.agent].kind] -= 1  # until it ends; nothing is planned with it
        if claim is None:
            continue
        if each.state != GIVEN:
            claim.num_ending += 1
        elif each.agent in leaving:
            claim.leaving.append(each)
        else:
            (claim.held if is_usable else claim.fixed).append(each)
    claims = Claims(
        experiments=[],
        trials=trials,
        waiting=[],
        nodes=nodes,
        open_slots=open_slots,
        free={agent: _free(num_slots, taken.get(agent)) for agent, num_slots in is_open.items()},
        ending=ending,
        people=facts.people,
        used_by_person=facts.used_by_person,
        taken=_taken(by_experiment, facts),
    )
    _group(claims, facts)
    return claims


def _taken(by_experiment: Counter[int], facts: PoolFacts) -> Counter[int | str]:
    owners = {**facts.owners, **{each.experiment: each.person for each in facts.candidates}}
    taken: Counter[int | str] = Counter(by_experiment)
    for experiment, number in by_experiment.items():
        taken[owners.get(experiment, "")] += number
    return taken


def _free(num_slots: int, taken: set[int] | None) -> list[int]:
    return sorted(set(range(num_slots)) - taken) if taken else list(range(num_slots))


def is_leaving(node: NodeFacts, now: float) -> bool:
    return node.is_leaving or (node.leaves_at is not None and now >= node.leaves_at - EMPTY_S)


def _group(claims: Claims, facts: PoolFacts) -> None:
    grouped: dict[int, list[TrialClaim]] = defaultdict(list)
    beyond = _beyond(claims)
    for claim in claims.trials.values():
        if claim.key in beyond:
            continue
        candidate = claim.candidate
        if _has_no_place(claim, claims):
            claims.nowhere.append(claim)
            continue
        if candidate.is_waiting and facts.now >= candidate.waiting_since + LINGER_S:
            if claim.held:
                claims.waiting.append(claim)
        elif not claim.is_ending and (claim.runs or not candidate.is_waiting):
            _measure(claim, facts)
            grouped[candidate.experiment].append(claim)
    claims.waiting.sort(key=lambda each: each.order)
    claims.experiments = [_experiment(number, grouped[number], facts) for number in sorted(grouped)]
    _choose_kinds(claims)


def _has_no_place(claim: TrialClaim, claims: Claims) -> bool:
    """Whether it wants to start, and every open node is excluded for it."""
    excluded = claim.candidate.excluded
    wants = bool(excluded) and not claim.num_live and not claim.candidate.is_waiting
    return wants and bool(claims.free) and all(each in excluded for each in claims.free)


def _beyond(claims: Claims) -> frozenset[TrialKey]:
    """The trials that may not start yet, because the pool already runs as many as it may."""
    new = [each for each in claims.trials.values() if each.num_live == 0 and not each.candidate.is_waiting]
    room = max(MOST_RUNNING - sum(each.num_live > 0 for each in claims.trials.values()), 0)
    if len(new) <= room:
        return frozenset()
    new.sort(key=lambda each: (each.candidate.priority, each.candidate.queued_at, each.order))
    claims.beyond = new[room:]
    return frozenset(each.key for each in claims.beyond)


def _measure(claim: TrialClaim, facts: PoolFacts) -> None:
    candidate, num_fixed = claim.candidate, len(claim.fixed)
    if (speed := facts.speeds.get(claim.key)) is not None:
        claim.speed = speed
        curve = SpeedCurve(speed.batches_per_s)
        claim.curve = curve if speed.batches_per_s else None
    if candidate.is_waiting:
        claim.least = claim.most = min(max(candidate.min_slots - num_fixed, 0), len(claim.held))
        return
    claim.least = max(candidate.min_slots - num_fixed, 0)
    claim.most = max(useful_slots(claim) - num_fixed, claim.least)


def useful_slots(claim: TrialClaim) -> int:
    """How many slots the trial can use well: with more, it would reach its target hardly sooner."""
    candidate = claim.candidate
    least, most = candidate.min_slots, max(candidate.max_slots, candidate.min_slots)
    if most == least or claim.curve is None:
        return most
    most = claim.curve.useful_slots(least, most)
    num_now = len(claim.held) + len(claim.fixed)
    if least <= num_now < most:
        saved_s = claim.saved_s(num_now, most)
        return num_now if saved_s is not None and saved_s <= claim.move_s else most
    return most


def _experiment(number: int, trials: list[TrialClaim], facts: PoolFacts) -> ExperimentClaim:
    trials.sort(key=_start_order)
    first = trials[0].candidate
    num_fixed = sum(len(each.fixed) for each in trials)
    claim = ExperimentClaim(
        number=number,
        person=first.person,
        priority=first.priority,
        weight=first.weight,
        limit=max(first.experiment_max_slots - num_fixed, 0) if first.experiment_max_slots else None,
        kind=first.kind,
        used=facts.used_by_experiment.get(number, 0.0),
        trials=trials,
    )
    claim.add_up()
    return claim


def _start_order(claim: TrialClaim) -> tuple[object, ...]:
    """Trials that run come first, so that none is parked for another of its experiment; those that wait for the
    search come last."""
    return (claim.candidate.is_waiting, claim.least > 0, not claim.runs, claim.order)


def _choose_kinds(claims: Claims) -> None:
    """An exact experiment runs on one kind of machine: where it runs, or where most slots are left."""
    left = Counter(claims.open_slots)
    if len(left) < 2:
        return
    for each in sorted(claims.experiments, key=lambda each: (each.priority, each.number)):
        if not each.kind and each.trials[0].candidate.is_exact:
            each.kind = _kind_of(each, claims, left)
        left[each.kind] -= each.demand


def _kind_of(experiment: ExperimentClaim, claims: Claims, left: Counter[str]) -> str:
    held = Counter(
        claims.nodes[each.agent].kind for trial in experiment.trials for each in (*trial.held, *trial.fixed)
        if each.agent in claims.nodes
    )  # fmt: skip
    need = max(each.candidate.min_slots for each in experiment.trials)
    kinds = [kind for kind in claims.open_slots if claims.open_slots[kind] >= need] or list(claims.open_slots)
    return min(held or kinds, key=lambda kind: (-held[kind], -left[kind], kind))
