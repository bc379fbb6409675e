"""What trials get and give back, and what the queue says: short stories of single decisions."""

from __future__ import annotations

from typing import Any

from everstep.coordinator.experiments.seam import Candidate
from everstep.coordinator.pool.claims import EMPTY_S
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

NOW = 100.0


def trial(experiment: int, number: int, **facts: Any) -> Candidate:
    usual = {"is_waiting": False, "waiting_since": 0.0, "rank": (experiment, number)}
    return Candidate(
        experiment=experiment,
        trial=number,
        trial_id=number,
        job=f"e{experiment}-t{number}",
        **{**usual, **facts},
    )


class Story:
    """A pool at one moment."""

    def __init__(self, *trials: Candidate, slots: int = 4, **facts: Any) -> None:
        self.trials = list(trials)
        self.facts: dict[str, Any] = {"nodes": [NodeFacts(agent="a", num_slots=slots)], **facts}
        self.held: list[Assignment] = []

    def hold(self, experiment: int, number: int, *slots: int, agent: str = "a", state: str = GIVEN) -> Story:
        for slot in slots:
            facts = {"pool": "default", "state": state, "reason": "", "began_at": 0.0}
            self.held.append(
                Assignment(
                    number=len(self.held) + 1, agent=agent, slot=slot, experiment=experiment, trial=number, **facts
                )  # type: ignore[arg-type]
            )
        return self

    def decide(self) -> PoolDecision:
        return decide_pool(PoolFacts(now=NOW, candidates=self.trials, assignments=self.held, **self.facts))


def given(decision: PoolDecision) -> list[tuple[int, int, str, int]]:
    return sorted((each.candidate.experiment, each.candidate.trial, each.agent, each.slot) for each in decision.give)


def released(decision: PoolDecision) -> list[int]:
    return sorted(each.number for each in decision.release)


def test_a_trial_grows_into_free_slots() -> None:
    decision = Story(trial(1, 1, max_slots=8)).hold(1, 1, 0).decide()
    assert [slot for _, _, _, slot in given(decision)] == [1, 2, 3]
    assert "grows to 4 slots" in decision.give[0].reason


def test_a_trial_does_not_grow_if_its_start_takes_longer_than_it_saves() -> None:
    speeds = {(1, 1): TrialSpeed(batches_per_s={1: 1.0}, start_s=20.0)}
    decision = Story(trial(1, 1, max_slots=4, batches_left=20.0), speeds=speeds).hold(1, 1, 0).decide()
    assert decision.give == ()


def test_a_trial_gets_no_slot_that_would_bring_less_than_a_fifth_of_one() -> None:
    speeds = {(1, 1): TrialSpeed(batches_per_s={1: 1.0, 2: 1.9, 3: 2.0})}
    story = Story(trial(1, 1, max_slots=4), trial(1, 2, max_slots=4), speeds=speeds, slots=6)
    decision = story.hold(1, 1, 0, 1, 2).hold(1, 2, 3, 4, 5).decide()
    assert released(decision) == [3]
    assert "hardly" in decision.release[0].reason


def test_the_trial_with_most_left_grows_first() -> None:
    trials = [trial(1, 1, max_slots=4, batches_left=10.0), trial(1, 2, max_slots=4, batches_left=1000.0)]
    assert [each[1] for each in given(Story(*trials).hold(1, 1, 0).hold(1, 2, 1).decide())] == [2, 2]


def test_a_new_trial_makes_others_shrink_before_any_is_parked() -> None:
    story = Story(trial(1, 1, max_slots=4), trial(1, 2), trial(1, 3)).hold(1, 1, 0, 1, 2).hold(1, 2, 3)
    assert released(story.decide()) == [3]


def test_the_newest_trial_of_the_lowest_priority_is_parked_first() -> None:
    trials = [trial(1, 1, priority=50), trial(2, 1, priority=60), trial(2, 2, priority=60), trial(3, 1, priority=1)]
    story = Story(*trials, slots=3).hold(1, 1, 0).hold(2, 1, 1).hold(2, 2, 2)
    decision = story.decide()
    assert released(decision) == [3]
    assert decision.release[0].reason == "e3-t1 needs its slots to start"
    assert decision.queue[0].reason == "needs 1 slot; 0 are free; e2 (lower priority) gives up one after its step"


def test_slots_that_are_freed_for_a_large_trial_wait_for_it() -> None:
    trials = [trial(1, 1, min_slots=3, max_slots=3, priority=1), trial(2, 1), trial(2, 2)]
    decision = Story(*trials, slots=3).hold(2, 1, 0, state=PARKING).decide()
    assert decision.give == ()
    assert released(decision) == []
    assert decision.queue[0].reason == "needs 3 slots; 2 are free; others are giving theirs back"


def test_trials_of_one_experiment_do_not_displace_each_other() -> None:
    decision = Story(trial(1, 1), trial(1, 2), slots=1).hold(1, 2, 0).decide()
    assert (decision.give, decision.release) == ((), ())
    assert decision.queue[0].reason == "needs 1 slot; 0 are free; 1 other trial is running"


def test_a_waiting_trial_gives_the_slots_beyond_its_minimum_to_others_at_once() -> None:
    waiting = trial(1, 1, max_slots=3, is_waiting=True, waiting_since=NOW)
    story = Story(waiting, trial(2, 1, queued_at=NOW), slots=3).hold(1, 1, 0, 1, 2)
    assert len(released(story.decide())) == 1


def test_a_quota_holds_although_slots_are_free() -> None:
    trials = [trial(1, number, person="alice") for number in (1, 2, 3)]
    decision = Story(*trials, people=People(known={"alice": Person(quota=2)})).decide()
    assert len(decision.give) == 2
    assert decision.queue[0].reason == "needs 1 slot; the quota of alice is 2 slots"


def test_an_experiment_keeps_its_limit() -> None:
    decision = Story(*[trial(1, number, experiment_max_slots=2) for number in (1, 2, 3)]).decide()
    assert len(decision.give) == 2
    assert decision.queue[0].reason == "needs 1 slot; its experiment may have 2 slots (max_slots)"


def test_an_exact_experiment_stays_on_one_kind_of_machine() -> None:
    nodes = [NodeFacts(agent="a", num_slots=2, kind="a100"), NodeFacts(agent="h", num_slots=4, kind="h100")]
    trials = [trial(1, number, is_exact=True, max_slots=2) for number in (1, 2, 3)]
    decision = Story(*trials, nodes=nodes).hold(1, 1, 0).decide()
    assert {agent for _, _, agent, _ in given(decision)} == {"a"}


def test_a_trial_that_may_run_anywhere_makes_room_for_one_that_needs_this_kind() -> None:
    nodes = [NodeFacts(agent="a", num_slots=1, kind="a100"), NodeFacts(agent="h", num_slots=1, kind="h100")]
    story = Story(trial(1, 1), trial(2, 1, kind="a100"), nodes=nodes).hold(1, 1, 0)
    assert released(story.decide()) == [1]


def test_a_trial_is_packed_on_few_nodes_and_large_gaps_stay() -> None:
    nodes = [NodeFacts(agent="a", num_slots=2), NodeFacts(agent="b", num_slots=4), NodeFacts(agent="c", num_slots=8)]
    decision = Story(trial(1, 1, min_slots=4, max_slots=4), nodes=nodes).decide()
    assert {agent for _, _, agent, _ in given(decision)} == {"b"}


def test_a_closed_node_keeps_its_trials_and_gets_no_others() -> None:
    nodes = [NodeFacts(agent="a", num_slots=2, is_open=False)]
    decision = Story(trial(1, 1, max_slots=2), trial(1, 2), nodes=nodes).hold(1, 1, 0).decide()
    assert (decision.give, decision.release) == ((), ())


def test_a_node_is_emptied_before_its_time_ends() -> None:
    nodes = [NodeFacts(agent="a", num_slots=1, leaves_at=NOW + EMPTY_S + 10.0)]
    decision = Story(trial(1, 1), nodes=nodes).hold(1, 1, 0).decide()
    assert (decision.release, decision.look_at) == ((), NOW + 10.0)
    soon = [NodeFacts(agent="a", num_slots=1, leaves_at=NOW + EMPTY_S - 1.0)]
    assert released(Story(trial(1, 1), nodes=soon).hold(1, 1, 0).decide()) == [1]


def test_a_trial_that_does_not_leave_in_time_is_killed() -> None:
    story = Story(trial(1, 1, preemption_timeout_s=30.0), parking_since={1: NOW - 31.0})
    decision = story.hold(1, 1, 0, state=PARKING).decide()
    assert [(each.number, each.how) for each in decision.release] == [(1, "kill")]


def test_a_trial_that_was_just_resized_is_not_resized_again_for_one_of_equal_priority() -> None:
    story = Story(trial(1, 1, person="alice"), trial(2, 1, person="bob"), slots=1, resized_at={(1, 1): NOW - 1.0})
    story.facts["used_by_person"] = {"alice": 60.0}
    decision = story.hold(1, 1, 0).decide()
    assert (decision.release, decision.look_at) == ((), NOW + 4.0)
    story.facts["resized_at"] = {}
    assert released(story.decide()) == [1]


def test_a_kind_that_the_pool_can_never_have_is_refused_with_the_numbers() -> None:
    decision = Story(trial(1, 1, kind="h100", min_slots=12), most_of_kind={"h100": 8}).decide()
    assert [each.reason for each in decision.impossible] == [
        "needs 12 slots of kind h100 for a trial: pool default has at most 8"
    ]


def test_the_kind_is_named_only_where_there_are_others() -> None:
    def why(*kinds: str) -> str:
        nodes = [NodeFacts(agent=kind, num_slots=0, kind=kind) for kind in kinds]
        (place,) = Story(trial(1, 1, kind="a100"), nodes=nodes).decide().queue
        return place.reason

    assert why("a100") == "needs 1 slot; the pool has 0 now"
    assert why("a100", "h100") == "needs 1 slot of kind a100; the pool has 0 now"


def test_while_nodes_with_assignments_are_silent_after_a_restart_free_slots_are_given_and_none_is_taken() -> None:
    nodes = [NodeFacts(agent="a", num_slots=3), NodeFacts(agent="b", num_slots=1, is_leaving=True)]
    trials = [trial(1, 1, max_slots=4, priority=50), trial(2, 1, min_slots=2, max_slots=2, priority=1)]
    story = Story(*trials, nodes=nodes, is_complete=False).hold(1, 1, 0, 1).hold(1, 1, 0, agent="b")
    assert not story.decide().release
    story.facts["is_complete"] = True
    assert sorted(each.number for each in story.decide().release) == [2, 3]
    story.trials[1] = trial(2, 1, priority=1)
    story.facts["is_complete"] = False
    assert given(story.decide()) == [(2, 1, "a", 2)]


def test_a_slot_that_is_being_given_back_counts_for_the_quota_until_it_is_free() -> None:
    people = People(known={"alice": Person(quota=2)})
    story = Story(trial(1, 1, person="alice"), trial(2, 1, person="alice", min_slots=2, max_slots=2), people=people)
    story.hold(1, 1, 0, state=PARKING)
    assert story.decide().give == (), "three slots would be hers for a moment"
    story.held.clear()
    story.trials = story.trials[1:]
    assert len(story.decide().give) == 2


def test_slots_of_trials_that_are_over_count_until_they_have_ended() -> None:
    story = Story(trial(2, 1, person="alice"), people=People(known={"alice": Person(quota=1)}), owners={1: "alice"})
    assert story.hold(1, 1, 0, state=PARKING).decide().give == ()


def test_a_trial_gives_way_to_one_of_the_same_person_before_that_starts_on_free_slots() -> None:
    people = People(known={"alice": Person(quota=2)})
    trials = [trial(1, 1, person="alice", min_slots=2, max_slots=2, priority=60)]
    trials.append(trial(2, 1, person="alice", min_slots=2, max_slots=2, priority=1))
    decision = Story(*trials, people=people).hold(1, 1, 0, 1).decide()
    assert (decision.give, released(decision)) == ((), [1, 2])


def test_a_trial_that_lost_a_part_of_its_minimum_gives_the_rest_back() -> None:
    trials = [trial(1, 1, min_slots=2, max_slots=2, priority=1), trial(2, 1, min_slots=2, max_slots=2)]
    decision = Story(*trials, slots=3).hold(1, 1, 0, 1).hold(2, 1, 2).decide()
    assert released(decision) == [3]
    assert decision.release[0].reason == "it needs 2 slots and has 1"


def why(story: Story) -> str:
    """The first in the queue waits."""
    return story.decide().queue[0].reason


def test_the_queue_says_who_gives_how_many_slots() -> None:
    urgent = trial(9, 1, min_slots=4, max_slots=4, priority=1)
    lower = Story(urgent, trial(2, 1, max_slots=2), slots=5).hold(2, 1, 0, 1)
    assert why(lower) == "needs 4 slots; 3 are free; e2 (lower priority) gives up one after its step"

    searching = trial(2, 1, min_slots=2, max_slots=2, is_waiting=True, waiting_since=1.0)
    assert why(Story(urgent, searching).hold(2, 1, 0, 1)) == (
        "needs 4 slots; 2 are free; e2 (waits for the search) gives up 2 after its step"
    )
    share = Story(trial(1, 1, person="alice", max_slots=4), trial(2, 1, person="bob", min_slots=2, max_slots=2))
    assert why(share.hold(1, 1, 0, 1, 2, 3)) == (
        "needs 2 slots; 0 are free; e1 (more than its share) gives up 2 after its step"
    )


def test_the_queue_says_what_a_trial_waits_for_if_nobody_gives_slots() -> None:
    others = Story(trial(1, 1), trial(2, 1, priority=60), slots=1).hold(1, 1, 0)
    assert why(others) == "needs 1 slot; 0 are free; 1 other trial is running"
    assert why(Story(trial(1, 1, min_slots=8, max_slots=8))) == "needs 8 slots; the pool has 4 now"
    nodes = [NodeFacts(agent="a", num_slots=8, kind="a100"), NodeFacts(agent="h", num_slots=2, kind="h100")]
    assert why(Story(trial(1, 1, kind="h100", min_slots=4, max_slots=4), nodes=nodes)) == (
        "needs 4 slots of kind h100; the pool has 2 now"
    )
    people = People(known={"alice": Person(quota=2)})
    trials = [trial(1, 1, person="alice", priority=60), trial(2, 1, person="alice", min_slots=2, max_slots=2)]
    assert why(Story(*trials, people=people).hold(1, 1, 0)) == (
        "needs 2 slots; 3 are free; others of alice (quota: 2 slots) give theirs back first"
    )


def test_a_request_that_can_never_be_met_fails_with_the_numbers() -> None:
    def reason(**facts: Any) -> str:
        people = People(known={"alice": Person(quota=2)})
        story = Story(trial(1, 1, person="alice", **facts), people=people, most_slots=8)
        (impossible,) = story.decide().impossible
        return impossible.reason

    assert reason(min_slots=12) == "needs 12 slots for a trial: pool default has at most 8"
    assert reason(min_slots=3) == "needs 3 slots for a trial: the quota of alice is 2 slots"
    assert reason(min_slots=2, experiment_max_slots=1) == (
        "needs 2 slots for a trial: max_slots of the experiment is 1"
    )


def test_a_pool_runs_at_most_so_many_trials_at_a_time_and_the_others_wait_with_the_number() -> None:
    trials = [trial(1, number, priority=50) for number in range(1, 1001)]
    trials += [trial(2, number, priority=10) for number in range(1, 4)]
    decision = Story(*trials, nodes=[NodeFacts(agent=f"n{place}", num_slots=400) for place in range(3)]).decide()
    assert len(decision.give) == 1000
    assert {each.candidate.trial for each in decision.give if each.candidate.experiment == 2} == {1, 2, 3}
    assert [(each.experiment, each.trial, each.position) for each in decision.queue] == [
        (1, 998, 1), (1, 999, 2), (1, 1000, 3)
    ]  # fmt: skip
    assert decision.queue[0].reason == "needs 1 slot; a pool runs at most 1000 trials at a time"
