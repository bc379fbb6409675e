"""How long a trial of a search trains, and where its files are: from the job file, the target and the progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everstep import env
from everstep.errors import UsageError
from everstep.pytorch import Batch, Epoch
from everstep.pytorch.config_lengths import configured_period
from everstep.pytorch.fit_plan import FitPlan, decide_due, make_plan
from everstep.pytorch.progress import BatchProgress, TrialProgress
from everstep.pytorch.run_folder import choose_paths
from everstep.pytorch.train_units import Record
from everstep.record.trial import TrialFacts, current_trial, trial_folder
from lab.one_weight import fit
from lab.refused import refused


def at(batches: int) -> BatchProgress:
    return BatchProgress(batches=batches, epochs=batches // 10, records=4 * batches)


def due(plan: FitPlan, batches: int, *, is_stopping: bool = False) -> tuple[bool, bool, bool, bool]:
    found = decide_due(plan, at(batches - 1), at(batches), is_stopping=is_stopping, is_preempted=False)
    return found.validate, found.checkpoint, found.is_target, found.is_end


def test_at_a_target_all_validate_and_save_and_the_fit_is_not_over() -> None:
    plan = FitPlan(length=Batch(100), target=Batch(10), reporting=Batch(1000))

    assert due(plan, 9) == (False, False, False, False)
    assert due(plan, 10) == (True, True, True, False)
    assert due(plan, 100) == (True, True, True, True)
    assert due(plan, 5, is_stopping=True) == (True, True, False, True)


def test_a_search_needs_no_length_of_the_script() -> None:
    given: dict[str, Any] = {"checkpoint": None, "validation": None, "reporting": Batch(5), "policy": "best"}
    plan = make_plan({}, length=None, is_test=False, is_trial=True, **given)

    assert not plan.length.is_reached(at(1_000_000_000))
    with refused("max-length-missing", UsageError):
        make_plan({}, length=None, is_test=False, **given)


def test_a_target_counts_as_reached_once_it_is_validated() -> None:
    progress = TrialProgress(target=2, target_length=30)
    assert not progress.is_at_target
    progress.result = {"length": 20, "metric": 0.5, "batches": 20, "digest": ""}
    assert not progress.is_at_target
    progress.result = {"length": 31, "metric": 0.5, "batches": 31, "digest": ""}
    assert progress.is_at_target


def test_a_checkpoint_of_an_earlier_version_has_no_target() -> None:
    progress, state = TrialProgress(), TrialProgress(target=3).state_dict()
    del state["target"], state["result"]

    progress.load_state_dict(state)

    assert (progress.target, progress.result) == (0, None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        (0, None),
        (7, Batch(7)),
        ({"batches": 7}, Batch(7)),
        ({"epochs": 2}, Epoch(2)),
        ({"records": 64}, Record(64)),
        ({"batches": 0}, None),
    ],
)
def test_periods_of_the_job_file(given: Any, expected: Any) -> None:
    assert configured_period({"min_validation_period": given}, "min_validation_period") == expected


def test_a_period_of_the_job_file_that_is_none() -> None:
    with refused("config-period-unknown", UsageError):
        configured_period({"min_checkpoint_period": {"steps": 5}}, "min_checkpoint_period")


def test_min_validation_period_is_a_default_of_fit() -> None:
    config = {"min_validation_period": {"batches": 3}}
    trial = fit(context={"exp_conf": {"name": "a", **config}}, max_length=Batch(6))
    assert trial.diary.count("on_validation_end") == 2
    own = fit(context={"exp_conf": {"name": "b", **config}}, max_length=Batch(6), validation_period=Batch(2))
    assert own.diary.count("on_validation_end") == 3, "what fit is given goes before it"


def test_min_checkpoint_period_is_a_default_of_fit() -> None:
    def num_saved(name: str, **given: Any) -> int:
        config = {"name": name, "min_checkpoint_period": {"batches": 2}}
        return fit(context={"exp_conf": config}, max_length=Batch(6), **given).diary.count("on_checkpoint_write_end")

    assert num_saved("a") == 3
    assert num_saved("b", checkpoint_period=Batch(3)) == 2, "what fit is given goes before it"


# --- places ---


class Context:
    """What a place depends on."""

    def __init__(self, config: dict[str, Any], checkpoints: str | None = None) -> None:
        self.config, self.checkpoints = config, checkpoints

    def get_experiment_config(self) -> dict[str, Any]:
        return self.config


def place(facts: TrialFacts, config: dict[str, Any] | None = None, checkpoints: str | None = None) -> str:
    context: Any = Context(config or {}, checkpoints)
    return choose_paths(context, FitPlan(length=Batch(5), reporting=Batch(5)), facts).checkpoints


def test_each_trial_has_its_place_and_finds_it_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (TrialFacts(experiment=1, trial=number, trial_id=number) for number in (1, 2))
    places = [place(each, config) for each in (first, second) for config in ({}, {"checkpoint_storage": "/data/kept"})]
    assert len(set(places)) == 4
    assert places[1].startswith("/data/kept/e1-t1-")
    assert place(first, checkpoints="mine") != place(second, checkpoints="mine")

    monkeypatch.chdir(tmp_path)
    assert place(first) == places[0]


def test_two_coordinators_number_their_trials_alike_and_do_not_share_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = TrialFacts(experiment=1, trial=1, trial_id=1)
    monkeypatch.setenv(env.TOKEN, "one")
    one = trial_folder(facts)
    monkeypatch.setenv(env.TOKEN, "another")
    assert trial_folder(facts) != one


def test_a_trial_is_one_only_with_a_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(env.COORDINATOR, raising=False)
    monkeypatch.setenv(env.TRIAL, json.dumps({"experiment": 1, "trial": 2, "trial_id": 3, "later": True}))
    assert current_trial() is None
    monkeypatch.setenv(env.COORDINATOR, "http://127.0.0.1:1")
    found = current_trial()
    assert found is not None and (found.experiment, found.trial, found.trial_id) == (1, 2, 3)
    monkeypatch.setenv(env.TRIAL, "7")
    with refused("trial-variable-unreadable", UsageError):
        current_trial()
