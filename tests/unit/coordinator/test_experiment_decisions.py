"""Decisions about experiments, trials and checkpoints: facts in, a value with its reason out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep import wire
from everstep.checkpoint.manifest import Manifest, RetentionPolicy
from everstep.checkpoint.policy import Found, decide_retention
from everstep.coordinator.experiments.facts import DELETED, DONE, LIVE, CheckpointRecord, Trial
from everstep.coordinator.experiments.retention import best_first, decide_deletion
from everstep.coordinator.experiments.seam import AssignmentEnd
from everstep.coordinator.experiments.states import decide_action
from everstep.coordinator.experiments.trials import decide_target, decide_vacated, validated
from everstep.errors import Refused
from everstep.wire.metrics import to_value

TRIAL = Trial(
    experiment=1, number=2, trial_id=3, bracket=0, hparams={}, seed=1, created_at=0.0, target_number=1, target=64
)
STATES = (*LIVE, *wire.ENDED, DELETED)
# By state: what each action leads to; the state itself: nothing changes; missing: refused.
TRANSITIONS = {
    "ACTIVE": {"pause": "PAUSED", "activate": "ACTIVE", "cancel": "STOPPING_CANCELED", "kill": "STOPPING_KILLED"},
    "PAUSED": {"pause": "PAUSED", "activate": "ACTIVE", "cancel": "STOPPING_CANCELED", "kill": "STOPPING_KILLED"},
    "STOPPING_COMPLETED": {"kill": "STOPPING_KILLED"},
    "STOPPING_CANCELED": {"cancel": "STOPPING_CANCELED", "kill": "STOPPING_KILLED"},
    "STOPPING_KILLED": {"cancel": "STOPPING_KILLED", "kill": "STOPPING_KILLED"},
    "STOPPING_ERROR": {"kill": "STOPPING_KILLED"},
    "COMPLETED": {"archive": "COMPLETED", "unarchive": "COMPLETED", "delete": DELETED},
    "CANCELED": {
        "cancel": "CANCELED",
        "kill": "CANCELED",
        "archive": "CANCELED",
        "unarchive": "CANCELED",
        "delete": DELETED,
    },
    "ERROR": {"archive": "ERROR", "unarchive": "ERROR", "delete": DELETED},
    DELETED: {"delete": DELETED},
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("action", wire.ACTIONS)
def test_each_action_leads_to_its_state_changes_nothing_or_is_refused(state, action):
    def decide():
        return decide_action(7, state, is_archived=False, action=action, why="", num_open=3)

    expected = TRANSITIONS[state].get(action)
    if expected is None:
        with pytest.raises(Refused) as refused:
            decide()
        assert refused.value.code == "experiment-transition"
        assert "7" in refused.value.message and "3" in refused.value.message
    else:
        change = decide()
        assert (change.state if change else state) == expected
        assert change is None or change.reason


def end(exit_code=0, *, was_asked=False, is_lost=False):
    return AssignmentEnd(exit_code=exit_code, was_asked=was_asked, is_lost=is_lost, reason="")


def vacate(trial, ended, *, number=1, state=wire.ACTIVE, is_finished=False, max_restarts=1, is_printing=False):
    more = {"is_finished": is_finished, "max_restarts": max_restarts, "is_printing": is_printing}
    decided = decide_vacated(trial, number, ended, state=state, **more)
    return decided.is_over, decided.why, decided.counts


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (end(1), (False, None, True)),
        (end(-9), (False, None, True)),
        (end(1, was_asked=True), (False, None, False)),
        (end(-9, is_lost=True), (False, None, False)),
        (end(0), (False, None, False)),
    ],
)
def test_only_a_death_of_its_own_counts_as_a_restart(ended, expected):
    assert vacate(TRIAL, ended) == expected


def test_assignments_that_ran_together_fail_together_and_count_once():
    counted = replace(TRIAL, num_restarts=1, vacated=7)
    assert vacate(counted, end(1), number=6) == (False, None, False)
    assert vacate(counted, end(1), number=8, max_restarts=2) == (False, None, True)
    assert vacate(counted, end(1), number=8) == (True, "ERRORED", False)


def test_a_trial_without_a_restart_left_fails():
    assert vacate(replace(TRIAL, num_restarts=1), end(1)) == (True, "ERRORED", False)
    assert vacate(replace(TRIAL, num_restarts=1), end(1, was_asked=True)) == (False, None, False)


def test_a_trial_ends_well_if_it_was_stopped_or_its_script_came_to_its_end():
    assert vacate(replace(TRIAL, wish=wire.STOP), end(0)) == (True, None, False)
    assert vacate(TRIAL, end(0), is_finished=True) == (True, None, False)
    assert vacate(TRIAL, end(-9, is_lost=True), is_finished=True) == (True, None, False)
    assert vacate(replace(TRIAL, ending=DONE), end(0)) == (True, None, False)
    assert vacate(replace(TRIAL, wish=wire.STOP), end(1)) == (False, None, True)
    assert vacate(replace(TRIAL, wish=wire.STOP), end(0, is_lost=True)) == (True, None, False)


def test_a_script_that_prints_its_results_has_ended_well_once_its_node_has_delivered_them():
    for ended in (end(75, was_asked=True), end(0, is_lost=True)):
        assert vacate(TRIAL, ended, is_finished=True, is_printing=True) == (False, None, False)
        assert vacate(TRIAL, ended, is_finished=True) == (True, None, False)
    assert vacate(TRIAL, end(0), is_finished=True, is_printing=True) == (True, None, False)


def test_invalid_killed_and_canceled_trials_end_as_such():
    assert vacate(replace(TRIAL, ending="INVALID_HP"), end(1)) == (True, "INVALID_HP", False)
    assert vacate(replace(TRIAL, ending="ERRORED"), end(-9, was_asked=True)) == (True, "ERRORED", False)
    assert vacate(replace(TRIAL, ending="USER_CANCELED"), end(-9)) == (True, "USER_CANCELED", False)
    assert vacate(TRIAL, end(0, was_asked=True), state=wire.STOPPING_CANCELED) == (True, "USER_CANCELED", False)
    assert vacate(TRIAL, end(0, was_asked=True), state=wire.PAUSED) == (False, None, False)


@pytest.mark.parametrize(
    ("changes", "state", "seen", "is_parking", "wish"),
    [
        ({}, wire.ACTIVE, 0, False, "train"),
        ({}, wire.ACTIVE, 1, False, "wait"),
        ({}, wire.ACTIVE, 1, True, "park"),
        ({}, wire.PAUSED, 0, False, "park"),
        ({}, wire.STOPPING_CANCELED, 0, False, "park"),
        ({}, wire.STOPPING_KILLED, 0, False, "stop"),
        ({"wish": "stop"}, wire.ACTIVE, 1, True, "stop"),
        ({"state": "ERROR"}, wire.ACTIVE, 0, False, "stop"),
    ],
)
def test_what_a_trial_is_told(changes, state, seen, is_parking, wish):
    answer = decide_target(replace(TRIAL, **changes), state=state, seen=seen, is_parking=is_parking, unit="batches")
    assert (answer.wish, answer.number) == (wish, 1)


def test_the_best_result_is_the_smallest_or_the_largest_and_the_first_of_equal_ones():
    def after(*metrics, smaller_is_better):
        trial = TRIAL
        for length, metric in enumerate(metrics, start=1):
            result = wire.TrialResult(length=length, metric=metric)
            trial = validated(trial, result, smaller_is_better=smaller_is_better)
        return trial.best, trial.best_length, trial.latest

    assert after(0.5, 0.2, 0.2, "nan", smaller_is_better=True) == (0.2, 2, "nan")
    assert after(0.5, 0.2, "inf", 0.5, smaller_is_better=False) == (0.5, 1, 0.5)


def checkpoint(uuid, trial, step, metric):
    given = {"uuid": uuid, "trial": trial, "step": step, "metric": metric}
    return CheckpointRecord(
        job="", experiment=1, uri="", generation=1, num_bytes=0, metrics={}, code="", created_at=0.0, **given
    )


SAVED = [
    checkpoint("a1", 1, 1, 0.5),
    checkpoint("a2", 1, 2, 0.1),
    checkpoint("a3", 1, 3, 0.3),
    checkpoint("a4", 1, 4, None),  # without a validation
    checkpoint("b1", 2, 1, 0.2),
    checkpoint("b2", 2, 2, 0.15),
    checkpoint("b3", 2, 3, "nan"),
]


@pytest.mark.parametrize(
    ("best", "trial_best", "trial_latest", "kept"),
    [
        (0, 1, 1, "a2 a4 b2 b3"),
        (0, 0, 0, ""),
        (1, 0, 0, "a2"),
        (3, 0, 0, "a2 b2 b1"),
        (0, 0, 2, "a3 a4 b2 b3"),
        (0, 9, 0, "a1 a2 a3 b1 b2 b3"),
        (1, 0, 1, "a2 a4 b3"),
    ],
)
def test_checkpoints_are_kept_by_the_union_of_the_three_rules(best, trial_best, trial_latest, kept):
    rule = wire.CheckpointsKept(experiment_best=best, trial_best=trial_best, trial_latest=trial_latest)
    gone = decide_deletion(SAVED, rule, smaller_is_better=True)
    assert sorted(gone + kept.split()) == [each.uuid for each in SAVED]


METRICS = st.lists(st.sampled_from([0.1, 0.5, 0.9, math.nan, math.inf, -math.inf]), min_size=1, max_size=8)


@given(METRICS, st.booleans())
def test_what_an_experiment_calls_its_best_is_what_the_trial_has_kept(metrics: list[float], smaller: bool):
    """A trial deletes others while it trains, and the experiment does not hear of it."""
    policy = RetentionPolicy(keep_latest=1, keep_best=1, metric="loss", mode="min" if smaller else "max")
    there: dict[int, Found] = {}
    for step, metric in enumerate(metrics):
        manifest = Manifest(generation=1, step=step, save="s", time=0.0, metrics={"loss": metric})
        there[step] = Found(key=manifest.key, manifest=manifest, problem="")
        for key in decide_retention(list(there.values()), policy).delete:
            del there[key.step]
    reported = [checkpoint(str(step), 1, step, to_value(metric)) for step, metric in enumerate(metrics)]
    best = best_first(reported, smaller_is_better=smaller)[0]
    assert best.step in there or not math.isfinite(metrics[best.step])
    rule = wire.CheckpointsKept(trial_best=1, trial_latest=1)
    gone = decide_deletion(reported, rule, smaller_is_better=smaller)
    assert all(str(step) not in gone for step in there) or not any(map(math.isfinite, metrics))


def test_a_checkpoint_that_an_active_experiment_begins_with_is_never_deleted():
    rule = wire.CheckpointsKept(trial_best=0, trial_latest=0)
    assert "b1" not in decide_deletion(SAVED, rule, smaller_is_better=True, used={"b1"})
    assert decide_deletion(SAVED, wire.CheckpointsKept(trial_latest=0), smaller_is_better=False)[:1] == ["a2"]
