"""Whatever the pool holds: no slot twice, limits are kept, minimums are whole, shares are fair, and decisions end."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.coordinator.experiments.seam import Candidate
from everstep.coordinator.pool.decisions import decide_pool
from everstep.coordinator.pool.facts import (
    GIVEN,
    PARKING,
    Assignment,
    NodeFacts,
    PoolDecision,
    PoolFacts,
    TrialSpeed,
)
from everstep.coordinator.pool.people import People, Person
from everstep.coordinator.pool.shares import Claimant, divide
from everstep.wire.bounds import MAX_INT
from everstep.wire.pool import LEAST_WEIGHT, MOST_WEIGHT

NOW = 100.0
PEOPLE = ("alice", "bob", "carol")
MOST_ROUNDS = 20


def pool_of(seed: int) -> PoolFacts:
    """Any pool; drawing each part by itself would take a hundred times longer."""
    draw = random.Random(seed)
    kinds = draw.choice([[""], ["a100", "h100"]])
    nodes = [
        NodeFacts(
            agent=f"n{place}",
            num_slots=draw.randint(0, 5),
            kind=draw.choice(kinds),
            is_open=draw.random() < 0.85,
            is_leaving=draw.random() < 0.1,
        )
        for place in range(draw.randint(1, 4))
    ]
    candidates = [each for number in range(1, draw.randint(1, 5) + 1) for each in experiment_of(number, kinds, draw)]
    measured = [each for each in candidates if draw.random() < 0.5]
    return PoolFacts(
        now=NOW,
        candidates=candidates,
        nodes=nodes,
        assignments=held_in(nodes, candidates, draw),
        people=People(
            known={
                each: Person(
                    weight=draw.choice([LEAST_WEIGHT, 1.0, 3.0, MOST_WEIGHT]), quota=draw.choice([None, None, 3])
                )
                for each in PEOPLE
            }
        ),
        speeds={
            (each.experiment, each.trial): TrialSpeed(batches_per_s={1: 10.0, 2: draw.choice([11.0, 18.0])})
            for each in measured
        },
        used_by_person={person: draw.choice([0.0, 10.0, 200.0]) for person in PEOPLE},
        used_by_experiment={number: draw.choice([0.0, 50.0]) for number in range(1, 6)},
    )


POOLS = st.builds(pool_of, st.integers(0, 2**32))


def experiment_of(number: int, kinds: list[str], draw: random.Random) -> list[Candidate]:
    min_slots = draw.choice([1, 1, 2, 4])
    facts = {
        "person": draw.choice(PEOPLE),
        "priority": draw.choice([10, 42]),
        "weight": draw.choice([LEAST_WEIGHT, 0.5, 1.0, 3.0, MOST_WEIGHT]),
        "experiment_max_slots": draw.choice([0, 0, 2, 5]),
        "min_slots": min_slots,
        "max_slots": max(min_slots, draw.choice([1, 2, 4, 8, MAX_INT])),
        "kind": draw.choice(["", *kinds]),
        "is_exact": draw.random() < 0.5,
    }
    return [candidate(number, trial, facts, draw) for trial in range(1, draw.randint(1, 4) + 1)]


def candidate(experiment: int, trial: int, facts: dict[str, object], draw: random.Random) -> Candidate:
    is_waiting = draw.random() < 0.2
    return Candidate(
        experiment=experiment,
        trial=trial,
        trial_id=100 * experiment + trial,
        job=f"e{experiment}-t{trial}",
        rank=(experiment, trial),
        is_waiting=is_waiting,
        waiting_since=NOW - draw.choice([0.1, 10.0]) if is_waiting else 0.0,
        batches_left=draw.choice([None, 5.0, 100.0, 1000.0]),
        queued_at=float(experiment),
        **facts,  # type: ignore[arg-type]
    )


def held_in(nodes: list[NodeFacts], candidates: list[Candidate], draw: random.Random) -> list[Assignment]:
    """Slots that some trials have already; those of one experiment on machines of one kind."""
    found: list[Assignment] = []
    kinds: dict[int, str] = {}
    for node, slot in [(each, slot) for each in nodes for slot in range(each.num_slots)]:
        each = draw.choice([None, *candidates])
        if each is None or each.kind not in ("", node.kind):
            continue
        has = sum(other.key == (each.experiment, each.trial) for other in found)
        if has < each.max_slots and kinds.setdefault(each.experiment, node.kind) == node.kind:
            found.append(assignment(len(found) + 1, each, node.agent, slot, draw.choice([GIVEN, GIVEN, PARKING])))
    return found


def assignment(number: int, each: Candidate, agent: str, slot: int, state: str = GIVEN) -> Assignment:
    facts = {"pool": "default", "state": state, "reason": "", "began_at": 0.0}
    return Assignment(
        number=number, agent=agent, slot=slot, experiment=each.experiment, trial=each.trial, **facts  # type: ignore[arg-type]
    )  # fmt: skip


def applied(facts: PoolFacts, decision: PoolDecision) -> PoolFacts:
    """What was released is free at once, and what was given runs."""
    gone = {each.number for each in decision.release}
    kept = [each for each in facts.assignments if each.number not in gone and each.state == GIVEN]
    last = max((each.number for each in facts.assignments), default=0)
    new = [
        assignment(last + place, each.candidate, each.agent, each.slot) for place, each in enumerate(decision.give, 1)
    ]
    resized = {each.key: NOW for each in facts.assignments if each.number in gone}
    resized |= {each.key: NOW for each in new}
    return replace(facts, assignments=[*kept, *new], resized_at={**facts.resized_at, **resized})


def at_rest(facts: PoolFacts) -> PoolFacts:
    """After all that follows from decisions at one moment."""
    for _ in range(MOST_ROUNDS):
        decision = decide_pool(facts)
        if not (decision.give or decision.release) and all(each.state == GIVEN for each in facts.assignments):
            return facts
        facts = applied(facts, decision)
    raise AssertionError("decisions do not come to an end")


def held_by(facts: PoolFacts) -> Counter[tuple[int, int]]:
    return Counter(each.key for each in facts.assignments)


@given(POOLS)
@settings(max_examples=100, deadline=None)
def test_no_slot_is_given_twice_and_only_open_ones(facts: PoolFacts) -> None:
    decision = decide_pool(facts)
    taken = [(each.agent, each.slot) for each in (*facts.assignments, *decision.give)]
    assert len(taken) == len(set(taken))
    sizes = {each.agent: each.num_slots for each in facts.nodes if each.is_open and not each.is_leaving}
    assert all(each.slot < sizes[each.agent] for each in decision.give)
    numbers = [each.number for each in decision.release]
    assert len(numbers) == len(set(numbers))
    assert all(each.reason for each in (*decision.give, *decision.release, *decision.queue, *decision.impossible))


@given(POOLS)
@settings(max_examples=100, deadline=None)
def test_what_is_given_keeps_limits_kinds_and_whole_minimums(facts: PoolFacts) -> None:
    decision = decide_pool(facts)
    before = held_by(facts)
    given = Counter((each.candidate.experiment, each.candidate.trial) for each in decision.give)
    kinds = {each.agent: each.kind for each in facts.nodes}
    for each in decision.give:
        key = (each.candidate.experiment, each.candidate.trial)
        assert before[key] + given[key] >= each.candidate.min_slots
        assert before[key] + given[key] <= max(each.candidate.max_slots, before[key])
        assert each.candidate.kind in ("", kinds[each.agent])


@given(POOLS)
@settings(max_examples=100, deadline=None)
def test_decisions_end_and_then_limits_are_kept_and_nothing_is_left_on_nodes_that_must_be_emptied(
    facts: PoolFacts,
) -> None:
    facts = at_rest(replace(facts, nodes=[replace(each, is_open=True) for each in facts.nodes]))
    never = {each.experiment for each in decide_pool(facts).impossible}
    by_trial = held_by(facts)
    for number, candidate in {each.experiment: each for each in facts.candidates}.items():
        held = sum(slots for (experiment, _), slots in by_trial.items() if experiment == number)
        assert number in never or not candidate.experiment_max_slots or held <= candidate.experiment_max_slots
    people = {each.experiment: each.person for each in facts.candidates if each.experiment not in never}
    for person, share in facts.people.known.items():
        held = sum(slots for (experiment, _), slots in by_trial.items() if people.get(experiment) == person)
        assert share.quota is None or held <= share.quota
    leaving = {each.agent for each in facts.nodes if each.is_leaving}
    assert not any(each.agent in leaving for each in facts.assignments)


def moved(facts: PoolFacts, decision: PoolDecision, draw: random.Random) -> PoolFacts:
    """What was released is on its way; some of what was on its way has ended; what was given runs."""
    gone = {each.number for each in decision.release}
    kept = [each for each in facts.assignments if each.state == GIVEN or draw.random() < 0.5]
    last = max((each.number for each in facts.assignments), default=0)
    new = [
        assignment(last + place, each.candidate, each.agent, each.slot) for place, each in enumerate(decision.give, 1)
    ]
    parked = [replace(each, state=PARKING) if each.number in gone else each for each in kept]
    return replace(facts, now=facts.now + draw.choice([0.1, 6.0]), assignments=[*parked, *new])


def taken_by(facts: PoolFacts) -> Counter[int | str]:
    """Slots by experiment and person, whether they are being given back or not."""
    people = {each.experiment: each.person for each in facts.candidates} | dict(facts.owners)
    return Counter(name for each in facts.assignments for name in (each.experiment, people[each.experiment]))


@given(POOLS, st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_limits_hold_at_each_moment_also_while_slots_move(facts: PoolFacts, seed: int) -> None:
    """Whoever gets a slot has no more than the limit, with all that is still being given back. Trials that are over,
    and have not ended yet, count too."""
    draw = random.Random(seed)
    owners = {each.experiment: each.person for each in facts.candidates}
    over = [each for each in facts.candidates if draw.random() < 0.1]
    facts = replace(facts, owners=owners, candidates=[each for each in facts.candidates if each not in over])
    limits: dict[int | str, int] = {}
    for each in facts.candidates:
        if each.experiment_max_slots:
            limits[each.experiment] = each.experiment_max_slots
        if (quota := facts.people.of(each.person).quota) is not None:
            limits[each.person] = quota
    for _ in range(MOST_ROUNDS):
        decision = decide_pool(facts)
        facts = moved(facts, decision, draw)
        taken = taken_by(facts)
        for grant in decision.give:
            for name in (grant.candidate.experiment, grant.candidate.person):
                assert name not in limits or taken[name] <= limits[name]
        places = [(each.agent, each.slot) for each in facts.assignments]
        assert len(places) == len(set(places))


@given(POOLS)
@settings(max_examples=100, deadline=None)
def test_no_trial_keeps_slots_that_are_too_few_for_it(facts: PoolFacts) -> None:
    """Two large trials never hold half of the slots each, whatever nodes they have lost."""
    facts = at_rest(replace(facts, nodes=[replace(each, is_open=True) for each in facts.nodes], settle_s=0.0))
    never = {each.experiment for each in decide_pool(facts).impossible}
    trials = {(each.experiment, each.trial): each for each in facts.candidates if each.experiment not in never}
    for key, slots in held_by(facts).items():
        assert key not in trials or trials[key].is_waiting or slots >= trials[key].min_slots


@given(POOLS)
@settings(max_examples=100, deadline=None)
def test_priority_is_strict(facts: PoolFacts) -> None:
    """No trial has a slot while one of higher priority waits for one."""
    plain = {"kind": "", "is_exact": False, "experiment_max_slots": 0, "min_slots": 1, "max_slots": 1}
    facts = replace(
        facts,
        people=People(),
        nodes=[replace(each, is_open=True) for each in facts.nodes],
        candidates=[replace(each, **plain) for each in facts.candidates],  # type: ignore[arg-type]
    )
    facts = at_rest(facts)
    by_trial = held_by(facts)
    queued = {(each.experiment, each.trial) for each in decide_pool(facts).queue}
    priorities = {(each.experiment, each.trial): each.priority for each in facts.candidates}
    first = min((priorities[key] for key in queued), default=100)
    waits = {(each.experiment, each.trial) for each in facts.candidates if each.is_waiting}
    assert all(priorities[key] <= first for key in by_trial)
    assert not queued or not any(key in waits and has_waited_long(facts, key) for key in by_trial)


def has_waited_long(facts: PoolFacts, key: tuple[int, int]) -> bool:
    """For the search: its slot is for any other trial."""
    return any((each.experiment, each.trial) == key and each.waiting_since <= NOW - 1.0 for each in facts.candidates)


@given(POOLS, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_order_in_which_facts_are_listed_does_not_matter(facts: PoolFacts, shuffler: random.Random) -> None:
    mixed = {}
    for name in ("candidates", "nodes", "assignments"):
        mixed[name] = list(getattr(facts, name))
        shuffler.shuffle(mixed[name])
    assert decide_pool(replace(facts, **mixed)) == decide_pool(facts)


CLAIMANTS = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.sampled_from([LEAST_WEIGHT, 0.5, 1.0, 2.0, 3.0, MOST_WEIGHT]),
        st.sampled_from([0.0, 5.0, 100.0]),
    ),
    min_size=1,
    max_size=8,
)


@given(CLAIMANTS, st.integers(0, 60))
@settings(max_examples=500)
def test_shares_are_max_min(wishes: list[tuple[int, float, float]], num_slots: int) -> None:
    """No claimant can get a slot more without taking one from another that has no more for its weight."""
    claimants = [
        Claimant(least=0, most=most, weight=weight, used=used, held=0, name=(place,))
        for place, (most, weight, used) in enumerate(wishes)
    ]
    shares = divide(claimants, num_slots, 5.0)
    assert sum(shares) == min(num_slots, sum(most for most, _, _ in wishes))
    for mine, my in zip(shares, claimants, strict=True):
        assert 0 <= mine <= my.most
        if mine < my.most:
            for theirs, their in zip(shares, claimants, strict=True):
                assert theirs == 0 or (theirs - 1) / their.weight < (mine + 1) / my.weight
