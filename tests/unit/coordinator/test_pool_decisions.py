"""Who gets which slot: no slot twice, in the order of ranks, and nothing is parked without need."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.coordinator.experiments.seam import Candidate
from everstep.coordinator.pool.claims import LINGER_S
from everstep.coordinator.pool.decisions import decide_pool
from everstep.coordinator.pool.facts import GIVEN, PARKING, Assignment, NodeFacts, PoolDecision, PoolFacts
from everstep.coordinator.pool.order import in_queue

NOW = 100.0


def candidate(
    trial: int, *, experiment: int = 1, waiting_since: float = 0.0, rank: tuple[int, ...] | None = None
) -> Candidate:
    return Candidate(
        experiment=experiment,
        trial=trial,
        trial_id=trial,
        job=f"e{experiment}-t{trial}",
        rank=rank or (0, trial),
        is_waiting=waiting_since > 0,
        waiting_since=waiting_since,
    )


def assignment(number: int, trial: int, slot: int, *, agent: str = "a", state: str = GIVEN) -> Assignment:
    facts = {"pool": "default", "experiment": 1, "state": state, "reason": "", "began_at": 0.0}
    return Assignment(number=number, agent=agent, slot=slot, trial=trial, **facts)  # type: ignore[arg-type]


def agent(name: str = "a", num_slots: int = 2, *, is_open: bool = True) -> NodeFacts:
    return NodeFacts(agent=name, num_slots=num_slots, is_open=is_open)


def decide_assignments(
    candidates: list[Candidate], nodes: list[NodeFacts], assignments: list[Assignment], now: float
) -> PoolDecision:
    return decide_pool(PoolFacts(now=now, candidates=candidates, nodes=nodes, assignments=assignments))


def test_the_first_in_rank_gets_the_slot() -> None:
    decision = decide_assignments([candidate(2), candidate(1), candidate(3)], [agent()], [], NOW)
    assert [(each.candidate.trial, each.slot) for each in decision.give] == [(1, 0), (2, 1)]
    assert all(each.reason for each in decision.give)


def test_a_running_trial_keeps_its_slot_even_if_it_is_last_in_rank() -> None:
    decision = decide_assignments([candidate(1), candidate(9)], [agent(num_slots=1)], [assignment(1, 9, 0)], NOW)
    assert (decision.give, decision.release) == ((), ())


def test_a_waiting_trial_keeps_its_slot_while_no_other_trial_wants_one() -> None:
    waiting = candidate(1, waiting_since=NOW - 60)
    decision = decide_assignments([waiting], [agent(num_slots=1)], [assignment(1, 1, 0)], NOW)
    assert decision.release == ()


def test_a_waiting_trial_is_parked_for_another_experiment_but_not_before_it_has_lingered() -> None:
    queue, slots, held = [candidate(2, experiment=2)], [agent(num_slots=1)], [assignment(1, 1, 0)]
    fresh = decide_assignments([candidate(1, waiting_since=NOW), *queue], slots, held, NOW)
    assert fresh.release == ()
    assert fresh.look_at == NOW + LINGER_S
    assert fresh.look_at is not None
    due = decide_assignments([candidate(1, waiting_since=NOW), *queue], slots, held, fresh.look_at)
    assert [each.number for each in due.release] == [1]


def test_a_waiting_trial_gives_its_slot_at_once_to_one_that_its_search_may_wait_for() -> None:
    candidates = [candidate(1, waiting_since=NOW), candidate(2)]
    decision = decide_assignments(candidates, [agent(num_slots=1)], [assignment(1, 1, 0)], NOW)
    assert [each.number for each in decision.release] == [1]


def test_a_slot_that_is_being_given_back_is_not_asked_for_twice() -> None:
    candidates = [candidate(1, waiting_since=1.0), candidate(2, waiting_since=1.0), candidate(3)]
    held = [assignment(1, 1, 0, state=PARKING), assignment(2, 2, 1)]
    assert decide_assignments(candidates, [agent()], held, NOW).release == ()


def test_a_slot_is_taken_until_its_agent_has_confirmed_the_end() -> None:
    decision = decide_assignments([candidate(2)], [agent(num_slots=1)], [assignment(1, 1, 0, state=PARKING)], NOW)
    assert decision.give == ()


def test_an_agent_that_runs_what_it_should_not_gets_nothing() -> None:
    assert decide_assignments([candidate(1)], [agent(is_open=False)], [], NOW).give == ()


def test_work_fills_the_tightest_gap_so_that_large_ones_stay_large() -> None:
    slots = [agent("a", 3), agent("b", 2)]
    decision = decide_assignments([candidate(number) for number in range(1, 4)], slots, [], NOW)
    assert sorted((each.agent, each.slot) for each in decision.give) == [("a", 0), ("b", 0), ("b", 1)]


AGENTS = st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=4)
TRIALS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 1.0, NOW - LINGER_S / 2])), max_size=12)
HELD = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([GIVEN, PARKING])), max_size=8)


@given(AGENTS, TRIALS, HELD)
@settings(max_examples=300)
def test_no_slot_and_no_trial_is_given_twice_and_nothing_is_parked_without_need(
    agents: list[tuple[int, bool]], trials: list[tuple[int, float]], held: list[tuple[int, int, str]]
) -> None:
    slots = [agent(f"a{number}", size, is_open=is_open) for number, (size, is_open) in enumerate(agents)]
    candidates = [candidate(trial, rank=(rank, trial), waiting_since=at) for trial, (rank, at) in enumerate(trials)]
    places = {(machine, slot): state for machine, slot, state in held}
    live = [
        assignment(number, number, slot, agent=f"a{machine}", state=state)
        for number, ((machine, slot), state) in enumerate(places.items())
    ]
    decision = decide_assignments(candidates, slots, live, NOW)

    taken = [(each.agent, each.slot) for each in live] + [(each.agent, each.slot) for each in decision.give]
    assert len(taken) == len(set(taken))
    running = [each.trial for each in live] + [each.candidate.trial for each in decision.give]
    assert len(running) == len(set(running))
    sizes = {each.agent: each.num_slots for each in slots if each.is_open}
    assert all(each.slot < sizes[each.agent] for each in decision.give)

    queue = in_queue(candidates, live)
    assert [each.candidate for each in decision.give] == queue[: len(decision.give)]
    left = len(queue) - len(decision.give)
    if left:
        num_free = sum(sizes.values()) - sum(each.slot < sizes.get(each.agent, 0) for each in live)
        assert num_free == len(decision.give), "a trial waits although a slot is free"
    num_coming = sum(each.state == PARKING and each.slot < sizes.get(each.agent, 0) for each in live)
    assert len(decision.release) <= max(0, left - num_coming)
    waiting = {each.trial: each for each in candidates if each.is_waiting}
    for parked in decision.release:
        (its,) = [each for each in live if each.number == parked.number]
        assert its.state == GIVEN
        assert its.trial in waiting
        assert parked.reason


@given(TRIALS)
def test_the_same_facts_in_another_order_give_the_same_decision(trials: list[tuple[int, float]]) -> None:
    candidates = [candidate(trial, rank=(rank, trial), waiting_since=at) for trial, (rank, at) in enumerate(trials)]
    slots, live = [agent("a", 1), agent("b", 2)], [assignment(1, 0, 0)]
    decision = decide_assignments(candidates, slots, live, NOW)
    assert decision == decide_assignments(candidates[::-1], slots[::-1], live, NOW)


def test_a_trial_that_is_named_twice_gets_one_slot() -> None:
    twice = [candidate(1), replace(candidate(1), rank=(0, 1))]
    assert len(decide_assignments(twice, [agent()], [], NOW).give) == 1
