"""Decisions about experiments, trials and checkpoints: facts in, a value with its reason out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep import wire
from everstep.coordinator.experiments.facts import DELETED, DONE, LIVE, CheckpointRecord, Trial
from everstep.coordinator.experiments.retention import decide_deletion
from everstep.coordinator.experiments.seam import AssignmentEnd
from everstep.coordinator.experiments.states import decide_action
from everstep.coordinator.experiments.trials import decide_target, decide_vacated, validated
from everstep.errors import Refused

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


def vacate(trial, ended, *, state=wire.ACTIVE, is_finished=False, max_restarts=1):
    decided = decide_vacated(trial, ended, state=state, is_finished=is_finished, max_restarts=max_restarts)
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


def test_a_trial_without_a_restart_left_fails():
    assert vacate(replace(TRIAL, num_restarts=1), end(1)) == (True, "ERRORED", False)
    assert vacate(replace(TRIAL, num_restarts=1), end(1, was_asked=True)) == (False, None, False)


def test_a_trial_ends_well_if_it_was_stopped_or_its_script_came_to_its_end():
    assert vacate(replace(TRIAL, wish=wire.STOP), end(0)) == (True, None, False)
    assert vacate(TRIAL, end(0), is_finished=True) == (True, None, False)
    assert vacate(TRIAL, end(-9, is_lost=True), is_finished=True) == (True, None, False)
    assert vacate(replace(TRIAL, ending=DONE), end(0)) == (True, None, False)
    assert vacate(replace(TRIAL, wish=wire.STOP), end(1)) == (False, None, True)


def test_invalid_killed_and_canceled_trials_end_as_such():
    assert vacate(replace(TRIAL, ending="INVALID_HP"), end(1)) == (True, "INVALID_HP", False)
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


def test_a_checkpoint_that_an_active_experiment_begins_with_is_never_deleted():
    rule = wire.CheckpointsKept(trial_best=0, trial_latest=0)
    assert "b1" not in decide_deletion(SAVED, rule, smaller_is_better=True, used={"b1"})
    assert decide_deletion(SAVED, wire.CheckpointsKept(trial_latest=0), smaller_is_better=False)[:1] == ["a2"]
