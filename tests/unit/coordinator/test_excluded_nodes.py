"""A trial that log policies keep away from a node is placed elsewhere, or waits and says why."""

from __future__ import annotations

from dataclasses import replace

from everstep.coordinator.experiments.seam import Candidate
from everstep.coordinator.pool.decisions import decide_pool
from everstep.coordinator.pool.facts import GIVEN, Assignment, NodeFacts, PoolFacts

NOW = 100.0


def candidate(trial, *, experiment=1, excluded=(), **more):
    return Candidate(
        experiment=experiment, trial=trial, trial_id=trial, job=f"e{experiment}-t{trial}", rank=(experiment, trial),
        is_waiting=False, waiting_since=0.0, excluded=frozenset(excluded), **more,
    )  # fmt: skip


def node(name, num_slots=1):
    return NodeFacts(agent=name, num_slots=num_slots)


def given(number, trial, agent, slot=0, experiment=1):
    return Assignment(
        number=number, pool="default", agent=agent, slot=slot, experiment=experiment, trial=trial, state=GIVEN,
        reason="", began_at=0.0,
    )  # fmt: skip


def decide(candidates, nodes, assignments=()):
    return decide_pool(PoolFacts(now=NOW, candidates=candidates, nodes=nodes, assignments=list(assignments)))


def places(decision):
    return sorted((each.candidate.trial, each.agent) for each in decision.give)


def test_it_gets_a_slot_of_another_node_also_if_that_is_the_second_choice():
    assert places(decide([candidate(1)], [node("a", 1), node("b", 4)])) == [(1, "a")]
    assert places(decide([candidate(1, excluded=["a"])], [node("a", 1), node("b", 4)])) == [(1, "b")]


def test_others_still_get_the_slots_of_that_node():
    decision = decide([candidate(1, excluded=["a"]), candidate(2)], [node("a"), node("b")])
    assert places(decision) == [(1, "b"), (2, "a")]


def test_a_trial_with_several_slots_gets_none_of_them_there():
    wide = candidate(1, excluded=["b"], min_slots=3, max_slots=3)
    decision = decide([wide], [node("a", 2), node("b", 4), node("c", 2)])
    assert sorted({each.agent for each in decision.give}) == ["a", "c"] and len(decision.give) == 3


def test_it_waits_for_a_slot_elsewhere_and_its_reason_names_the_node():
    decision = decide([candidate(1, excluded=["a"]), candidate(2)], [node("a"), node("b")], [given(1, 2, "b")])
    assert decision.give == ()
    (waiting,) = decision.queue
    assert waiting.trial == 1 and "not on a (log policy)" in waiting.reason
    assert decision.release == (), "a slot that it may not have is of no use"


def test_room_is_made_only_where_it_may_run():
    urgent = candidate(1, experiment=9, excluded=["a"], priority=1)
    running = [candidate(2), candidate(3)]
    decision = decide([urgent, *running], [node("a"), node("b")], [given(1, 2, "a"), given(2, 3, "b")])
    assert [each.number for each in decision.release] == [2]


def test_without_any_other_node_it_waits_says_what_to_do_and_takes_nobodys_share():
    lonely = candidate(1, experiment=9, excluded=["a"])
    decision = decide([lonely, candidate(2), candidate(3)], [node("a", 2)])
    assert places(decision) == [(2, "a"), (3, "a")]
    (waiting,) = decision.queue
    assert waiting.reason == (
        "needs 1 slot, not on a (log policy); the pool has no other node now: add one, or cancel the experiment"
    )
    assert places(decide([lonely], [node("a", 2), node("new")])) == [(1, "new")]


def test_it_keeps_a_slot_that_it_has_there():
    decision = decide([candidate(1, excluded=["a"])], [node("a"), node("b")], [given(1, 1, "a")])
    assert (decision.give, decision.release, decision.queue) == ((), (), ())
    wide = replace(candidate(1, excluded=["a"]), max_slots=2)
    assert [each.agent for each in decide([wide], [node("a", 2), node("b")], [given(1, 1, "a")]).give] == ["b"]
