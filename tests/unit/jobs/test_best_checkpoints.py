"""The best checkpoints by any metric that they have; a metric that none has is not guessed."""

from __future__ import annotations

from typing import Any

import pytest

from everstep import wire
from everstep.errors import UsageError
from everstep.jobs.experiments import best_checkpoints


def view(*, smaller_is_better: bool = True) -> wire.ExperimentView:
    return wire.ExperimentView(
        experiment=1,
        name="",
        state="COMPLETED",
        reason="",
        searcher="random",
        metric="loss",
        smaller_is_better=smaller_is_better,
        unit="batches",
        progress=1.0,
        num_trials={},
        num_slots=0,
        best=None,
        created_at=0.0,
        started_at=None,
        ended_at=None,
    )


def saved(uuid: str, metric: Any = None, state: str = "COMPLETED", **metrics: Any) -> wire.SavedCheckpoint:
    return wire.SavedCheckpoint(
        uuid=uuid,
        uri="",
        step=8,
        job="e1-t1",
        experiment=1,
        trial=1,
        metric=metric,
        metrics=metrics,
        state=state,
        num_bytes=0,
        created_at=0.0,
    )


FOUND = [saved("a", 0.3, accuracy=0.7), saved("b", 0.1, accuracy=0.9), saved("c"), saved("d", 0.0, "DELETED", f1=1.0)]


def order(found: list[wire.SavedCheckpoint] = FOUND, *, by: wire.ExperimentView | None = None, **given: Any) -> str:
    return "".join(each.uuid for each in best_checkpoints(found, by or view(), **given))


def test_by_the_searchers_metric_and_direction_unless_told_otherwise() -> None:
    assert order() == "bac"
    assert order(by=view(smaller_is_better=False)) == "abc"
    assert order(number=1) == "b"
    assert order(metric="accuracy") == "abc"
    assert order(metric="accuracy", smaller_is_better=False) == "bac"
    assert order(metric="loss", smaller_is_better=False) == "abc", "also if only results, not checkpoints, tell it"


def test_a_metric_that_is_not_finite_is_never_the_best() -> None:
    found = [saved("a", "-inf"), saved("b", 0.5), saved("c", "inf"), saved("d", "nan")]
    assert order(found, number=1) == order(found, number=1, smaller_is_better=False) == "b"


def test_a_metric_that_none_has_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError) as refused:
        order(metric="acuracy")
    assert refused.value.code == "metric-unknown"
    assert "they have accuracy, loss" in refused.value.message and refused.value.hint == "did you mean accuracy?"
    with pytest.raises(UsageError):
        order(metric="f1")  # of a deleted one
    with pytest.raises(UsageError):
        order([saved("c")], metric="loss")
    assert order([], metric="loss") == "", "there is none to sort"
