"""In which order the client's lists come."""

from __future__ import annotations

from typing import Any

import pytest

from everstep import wire
from everstep.experimental.enums import CheckpointSortBy, ExperimentSortBy, ModelSortBy, OrderBy, TrialSortBy
from everstep.experimental.ordering import ordered, ordered_checkpoints
from everstep.wire.models import MODEL_SORTS


def trial(number: int, **more: Any) -> wire.TrialView:
    given: dict[str, Any] = {
        "experiment": 1,
        "trial": number,
        "trial_id": number,
        "job": f"e1-t{number}",
        "state": "COMPLETED",
        "reason": "",
        "hparams": {},
        "seed": 0,
        "bracket": 0,
        "target": None,
        "length": 0,
        "latest": None,
        "best": None,
        "best_length": 0,
        "num_restarts": 0,
        "num_slots": 0,
    }
    return wire.TrialView(**{**given, **more})


def experiment(number: int, **more: Any) -> wire.ExperimentView:
    given: dict[str, Any] = {
        "experiment": number,
        "name": "n",
        "state": "COMPLETED",
        "reason": "",
        "searcher": "random",
        "metric": "loss",
        "smaller_is_better": True,
        "unit": "batches",
        "progress": 1.0,
        "num_trials": {},
        "num_slots": 0,
        "best": None,
        "created_at": 0.0,
        "started_at": None,
        "ended_at": None,
    }
    return wire.ExperimentView(**{**given, **more})


def saved(step: int, trial: int = 1, metric: Any = None, **more: Any) -> wire.SavedCheckpoint:
    given: dict[str, Any] = {
        "uuid": f"u{trial}-{step}",
        "uri": "/x",
        "step": step,
        "job": "j",
        "experiment": 1,
        "trial": trial,
        "metric": metric,
        "metrics": {},
        "state": "COMPLETED",
        "num_bytes": 0,
        "created_at": 100.0 - step,
    }
    return wire.SavedCheckpoint(**{**given, **more})


def test_what_has_no_value_comes_last_in_both_directions() -> None:
    trials = [trial(1, best=0.3), trial(2), trial(3, best=0.1), trial(4, best="nan")]
    by = TrialSortBy.BEST_VALIDATION_METRIC
    assert [each.trial for each in ordered(trials, by, OrderBy.ASCENDING)] == [3, 1, 2, 4]
    assert [each.trial for each in ordered(trials, by, OrderBy.DESCENDING)] == [1, 3, 2, 4]


def test_a_trial_has_a_duration_once_it_is_over() -> None:
    trials = [trial(1, started_at=0.0, ended_at=9.0), trial(2, started_at=5.0), trial(3, started_at=1.0, ended_at=2.0)]
    assert [each.trial for each in ordered(trials, TrialSortBy.DURATION, OrderBy.ASC)] == [3, 1, 2]


def test_experiments_by_their_best_and_by_how_many_trials_they_have() -> None:
    best = wire.BestResult(trial=1, metric=0.5, length=1)
    found = [experiment(1, num_trials={"COMPLETED": 1, "ERROR": 4}), experiment(2, best=best, num_trials={"ERROR": 2})]
    assert [each.experiment for each in ordered(found, ExperimentSortBy.NUM_TRIALS, OrderBy.DESC)] == [1, 2]
    assert [each.experiment for each in ordered(found, ExperimentSortBy.SEARCHER_METRIC_VAL, OrderBy.DESC)] == [2, 1]


@pytest.mark.parametrize("field", [*ExperimentSortBy, *TrialSortBy, *CheckpointSortBy])
def test_each_field_exists(field: Any) -> None:
    made = {ExperimentSortBy: experiment(1), TrialSortBy: trial(1), CheckpointSortBy: saved(1)}[type(field)]
    assert ordered([made], field, OrderBy.ASCENDING) == [made]


def test_the_coordinator_sorts_models_by_each_field() -> None:
    assert {each.value for each in ModelSortBy} <= set(MODEL_SORTS)


def test_checkpoints_by_a_metric_or_a_field() -> None:
    view = experiment(1)
    found = [saved(1, metric=0.2), saved(2, metric=0.1), saved(3, metric=0.3), saved(4, metric=0.0, state="DELETED")]

    def steps(*sort: Any, **more: Any) -> list[int]:
        return [each.step for each in ordered_checkpoints(found, view, *sort, **more)]

    assert steps(None, None) == [2, 1, 3]
    assert steps(None, OrderBy.DESCENDING) == [3, 1, 2]
    assert steps("loss", None, smaller_is_better=False) == [3, 1, 2]
    assert steps(CheckpointSortBy.BATCH_NUMBER, OrderBy.DESC) == [3, 2, 1]
    assert steps(CheckpointSortBy.END_TIME, None) == [3, 2, 1]


def test_an_order_has_two_names() -> None:
    assert OrderBy.ASC is OrderBy.ASCENDING and OrderBy.DESC is OrderBy.DESCENDING
