"""How long an experiment has run: from its first start, without pauses; and when its time is up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everstep import wire
from everstep.coordinator.experiments.facts import Experiment
from everstep.coordinator.experiments.time_limits import check_limit, ends_at, ran_s, stopped_if_late, timed
from everstep.errors import Refused
from lab.experiments import spec

BEGAN = 1000.0


def experiment(**facts: Any) -> Experiment:
    given = spec(request="r")
    usual = {"request": "r", "name": "", "description": "", "labels": (), "notes": "", "state": wire.ACTIVE}
    return Experiment(
        number=1, reason="", spec=given, kept=given.kept, created_at=0.0,
        **{**usual, "scheduling": wire.Scheduling(time_limit_s=60.0), **facts},
    )  # fmt: skip


def started() -> Experiment:
    return timed(experiment(started_at=BEGAN), BEGAN)


def test_time_runs_from_the_first_trials_start() -> None:
    waiting = experiment()
    assert timed(waiting, BEGAN) is waiting and ends_at(waiting) is None
    assert (ends_at(started()), ran_s(started(), BEGAN + 5.0)) == (BEGAN + 60.0, 5.0)
    assert timed(started(), BEGAN + 5.0) == started(), "a change of another kind changes no time"


def test_pauses_do_not_count() -> None:
    paused = timed(replace(started(), state=wire.PAUSED), BEGAN + 20.0)
    assert (ends_at(paused), ran_s(paused, BEGAN + 500.0)) == (None, 20.0)
    active = timed(replace(paused, state=wire.ACTIVE), BEGAN + 1000.0)
    assert (ends_at(active), ran_s(active, BEGAN + 1010.0)) == (BEGAN + 1040.0, 30.0)


def test_its_trials_save_when_its_time_is_up_and_the_reason_has_the_numbers() -> None:
    assert stopped_if_late(started(), BEGAN + 59.0) == started()
    late = stopped_if_late(started(), BEGAN + 60.0)
    assert late.state == wire.STOPPING_CANCELED
    assert late.reason == "its time limit of 60 s is up: it ran for 60 s; trials save first"
    over = timed(late, BEGAN + 61.0)
    assert (ends_at(over), ran_s(over, BEGAN + 99.0)) == (None, 61.0)


def test_an_experiment_without_a_limit_goes_on_and_its_time_is_known() -> None:
    endless = replace(started(), scheduling=wire.Scheduling())
    assert (ends_at(endless), ran_s(endless, BEGAN + 1e6)) == (None, 1e6)
    assert stopped_if_late(endless, BEGAN + 1e6) == endless


@pytest.mark.parametrize(("limit_s", "is_refused"), [(20.0, True), (19.0, True), (21.0, False), (0.0, False)])
def test_a_limit_that_has_passed_already_is_refused_with_the_numbers(limit_s: float, is_refused: bool) -> None:
    changed = replace(started(), scheduling=wire.Scheduling(time_limit_s=limit_s))
    if not is_refused:
        check_limit(changed, BEGAN + 20.0)
        return
    with pytest.raises(Refused) as refused:
        check_limit(changed, BEGAN + 20.0)
    assert refused.value.code == "time-limit-passed"
    assert f"has run for 20 s: a time limit of {limit_s:g} s" in refused.value.message


def test_a_clock_that_was_set_back_takes_no_time_away() -> None:
    assert ran_s(started(), BEGAN - 100.0) == 0.0
