"""Trials that were trained before: taken over on each store, and the search is the same search."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everstep import wire
from everstep.coordinator.experiments.facts import MIXED
from everstep.errors import Refused
from lab.command import until
from lab.experiments import ToyPool, spec
from lab.refused import refused
from lab.search_programs import create as create_trial
from lab.search_programs import custom, post, validate

REUSE = {"reuse": True, "data": {"version": "v1"}}
GRID = {"lr": {"type": "categorical", "vals": [0.1, 0.2, 0.3]}, "depth": 2}


@pytest.fixture
def pools(server_on_each_store: Any) -> Iterator[Callable[..., ToyPool]]:
    made: list[ToyPool] = []

    def join(*given: Any, **named: Any) -> ToyPool:
        made.append(ToyPool(server_on_each_store.url, server_on_each_store.token, *given, **named))
        made[-1].report()  # the slots are its own now, not those of an earlier story's agent with its name
        return made[-1]

    yield join
    for each in made:
        each.close()


def create(pool: ToyPool, searcher: str, /, config: dict[str, Any] = REUSE, **given: Any) -> int:
    """With code that no other test has."""
    order = {"script": "train.py", "code": pool.incarnation * 2, **given.pop("order", {})}
    made = spec(searcher, **{"order": order, "config": config, **given})
    made = replace(made, config={**made.config, "searcher": made.searcher})
    return pool.people.create_experiment(made).experiment


def told(pool: ToyPool, experiment: int) -> list[tuple[Any, ...]]:
    """What a search has found, in words that reuse must not change."""
    keys = ("trial", "hparams", "seed", "state", "target", "length", "latest", "best", "best_length", "bracket")
    return [tuple(getattr(each, key) for key in keys) for each in pool.people.trials(experiment).trials]


def decisions(pool: ToyPool, experiment: int) -> set[str]:
    """In whatever order the results came."""
    events = pool.people.search_events(experiment, limit=1000).events
    return {str(sorted(each.items())) for event in events for each in event.operations}


def test_a_repeated_grid_is_not_trained_again(pools: Callable[..., ToyPool]) -> None:
    pool = pools()
    first = create(pool, "grid", hyperparameters=GRID)
    view = pool.train(first)
    assert sorted(pool.trained.values()) == [[64]] * 3
    again = create(pool, "grid", hyperparameters=GRID, name="another name")
    other = pool.train(again)
    assert len(pool.trained) == 3, "no trial of the second one has trained"
    assert told(pool, again) == told(pool, first)
    assert other.best is not None and view.best is not None
    assert (other.best.trial, other.best.metric) == (view.best.trial, view.best.metric)
    assert other.best.checkpoint == view.best.checkpoint != ""
    number = other.best.trial
    assert f"results of e{first}-t{number} reused up to 64 batches" in pool.people.trial(again, number).reason
    kept = pool.people.checkpoints(again)
    assert {each.trial for each in kept.checkpoints} == {1, 2, 3}, "it has them, and saved none"
    assert pool.people.trial_results(again, 1) == pool.people.trial_results(first, 1)


def test_a_repeated_point_of_one_grid_waits_for_the_first(pools: Callable[..., ToyPool]) -> None:
    pool = pools(num_slots=3)
    twice = {"lr": {"type": "categorical", "vals": [0.1, 0.1, 0.3]}}
    experiment = create(pool, "grid", hyperparameters=twice)
    assert pool.train(experiment).state == "COMPLETED"
    assert len(pool.trained) == 2
    seeds = {each.hparams["lr"]: each.seed for each in pool.people.trials(experiment).trials}
    assert len(seeds) == len(set(seeds.values())) == 2, "equal hyperparameters, equal seeds"


def test_a_longer_search_continues_from_the_newest_checkpoint(pools: Callable[..., ToyPool]) -> None:
    pool = pools()
    short = create(pool, "grid", hyperparameters=GRID)
    pool.train(short)
    longer = create(pool, "grid", hyperparameters=GRID, max_length={"batches": 100})
    assert pool.train(longer).state == "COMPLETED"
    orders = [pool.orders[f"e{longer}-t{number}"] for number in (1, 2, 3)]
    assert [each.resume_from for each in orders] == [f"e{short}-t{number}-64" for number in (1, 2, 3)]
    assert [(each.resume_from_step, each.resume_from_uri) for each in orders] == [(64, "file:///none")] * 3
    assert [each.length for each in pool.people.trial_results(longer, 1).results] == [100], "64 was the other's target"
    shorter = create(pool, "grid", hyperparameters=GRID, max_length={"batches": 50})
    pool.train(shorter)
    assert pool.trained[f"e{shorter}-t1"] == [50], "nothing was saved below it: from the beginning"
    assert pool.orders[f"e{shorter}-t1"].resume_from == ""


@pytest.mark.parametrize("period", [0, 8])
def test_a_search_that_reuses_decides_as_one_that_trains(pools: Callable[..., ToyPool], period: int) -> None:
    """An adaptive one over a grid of points that a plain one has trained, and others."""
    pool = pools()
    pool.period = period
    space = {"lr": {"type": "categorical", "vals": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}}
    adaptive = {"max_trials": 12, "hyperparameters": space, "max_concurrent_trials": 8, "max_rungs": 3}
    other = {"reuse": True, "data": {"version": "another"}}
    trained = create(pool, "adaptive_asha", other, **adaptive)
    view = pool.train(trained)
    plain = create(pool, "grid", hyperparameters=space, max_length={"batches": 16})
    pool.train(plain)
    before = sum(len(lengths) for lengths in pool.trained.values())
    reusing = create(pool, "adaptive_asha", **adaptive)
    found = pool.train(reusing)
    assert told(pool, reusing) == told(pool, trained)
    assert decisions(pool, reusing) == decisions(pool, trained)
    assert found.best is not None and view.best is not None
    assert (found.best.trial, found.best.metric, found.best.length) == (
        view.best.trial,
        view.best.metric,
        view.best.length,
    )
    assert sum(len(lengths) for lengths in pool.trained.values()) - before < before / 2
    numbers = range(1, 13)
    kept = [pool.people.trial_results(reusing, number) for number in numbers]
    assert kept == [pool.people.trial_results(trained, number) for number in numbers]


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"reuse": True, "data": {"version": "v2"}}},
        {"order": {"code": "d" * 64}},
        {"order": {"args": ["--wide"]}},
        {"seed": 8},
        {"num_micro_batches": 2},
        {"metric": "accuracy"},
        {"config": {**REUSE, "optimizations": {"aggregation_frequency": 2}}},
    ],
)
def test_what_differs_in_its_key_is_trained(pools: Callable[..., ToyPool], change: dict[str, Any]) -> None:
    pool = pools()
    pool.train(create(pool, "grid", hyperparameters=GRID))
    pool.train(create(pool, "grid", **{"hyperparameters": GRID, **change}))
    assert len(pool.trained) == 6


def test_another_kind_of_machine_trains_itself(pools: Callable[..., ToyPool]) -> None:
    pool = pools("old")
    first = create(pool, "grid", hyperparameters=GRID)
    pool.train(first)
    pool.kind = "new"
    pool.work()
    second = create(pool, "grid", hyperparameters=GRID)
    pool.train(second)
    assert len(pool.trained) == 6
    assert [pool.people.trial(each, 1).kind for each in (first, second)] == ["old", "new"]


def test_machines_of_another_pool_do_not_matter(pools: Callable[..., ToyPool]) -> None:
    pool, other = pools("old"), pools("new", pool="other", name="elsewhere")
    other.work()
    pool.train(create(pool, "grid", hyperparameters=GRID))
    other.work()
    pool.train(create(pool, "grid", hyperparameters=GRID))
    assert len(pool.trained) == 3, "no trial of the second one has trained"


def test_a_trial_that_its_search_program_cut_short_has_not_ended_by_itself(pools: Callable[..., ToyPool]) -> None:
    """Otherwise, others with its key would end where it was cut."""
    pool = pools()
    constant = {"lr": 0.1, "depth": 2}
    cut = replace(custom(), order={"script": "train.py", "code": pool.incarnation * 2}, config=REUSE, seed=7)
    experiment = pool.people.create_experiment(cut).experiment
    pool.people.search_operations(experiment, post(1, create_trial("a", **constant), validate("a", 50)))
    until(lambda: pool.work() or pool.people.trial(experiment, 1).length == 50, lambda: "not trained")
    last = pool.people.search_state(experiment).last_event
    pool.people.search_operations(experiment, post(last, validate("a", 100), {"kind": "shutdown"}))
    assert pool.train(experiment).state == "COMPLETED"
    longer = create(pool, "single", hyperparameters=constant, max_length={"batches": 100})
    assert pool.train(longer).state == "COMPLETED"
    (trial,) = pool.people.trials(longer).trials
    assert (trial.length, trial.seed) == (100, pool.people.trial(experiment, 1).seed)
    assert pool.orders[trial.job].resume_from == f"e{experiment}-t1-50"


def test_what_was_deleted_is_trained_and_what_is_used_stays(pools: Callable[..., ToyPool]) -> None:
    pool = pools()
    first = create(pool, "grid", hyperparameters=GRID)
    pool.train(first)
    pool.people.act(first, wire.ExperimentAction(action="delete"))
    pool.train(create(pool, "grid", hyperparameters=GRID))
    assert len(pool.trained) == 6


def test_what_a_trial_has_from_another_stays_though_it_moves_to_another_kind_of_machine(
    pools: Callable[..., ToyPool], tmp_path: Path
) -> None:
    pool = pools("old", num_slots=1)
    pool.place = tmp_path
    space = {"lr": {"type": "categorical", "vals": [0.1]}}
    first = create(pool, "grid", hyperparameters=space)
    pool.train(first)
    holds_the_slot = create(pool, "single", {}, hyperparameters={"lr": 1})

    def seen(experiment: int) -> wire.TrialView:
        pool.report()  # it stays, however long this takes
        return pool.people.trial(experiment, 1)

    until(lambda: seen(holds_the_slot).state == "RUNNING", lambda: f"{pool.people.pool('default')}")
    longer = create(pool, "grid", hyperparameters=space, max_length={"batches": 100})
    until(lambda: "continued" in seen(longer).reason, lambda: f"{seen(longer)}")
    pool.kind = "new"
    pool.train(longer)
    assert pool.people.trial(longer, 1).kind == MIXED
    pool.people.act(first, wire.ExperimentAction(action="delete"))
    swept = create(pool, "grid", {}, hyperparameters=space, kept=wire.CheckpointsKept(trial_best=0, trial_latest=0))
    pool.train(swept)  # a later sweep has an end to wait for
    until(lambda: pool.people.checkpoint(f"e{swept}-t1-64").state == "DELETED", lambda: f"e{swept} is not swept")
    kept = {each.uuid: each.state for each in pool.people.checkpoints(longer).checkpoints}
    assert kept == {f"e{first}-t1-64": "COMPLETED", f"e{longer}-t1-100": "COMPLETED"}


def test_reuse_needs_a_name_for_the_data(pools: Callable[..., ToyPool]) -> None:
    with refused("reuse-without-data-version", Refused):
        create(pools(), "grid", {"reuse": True}, hyperparameters=GRID)


# --- verification ---


def test_a_trial_is_trained_again_with_its_hyperparameters_seed_and_lengths(pools: Callable[..., ToyPool]) -> None:
    pool = pools()
    space = {"lr": {"log": [1e-4, 1e-1]}, "net": {"wide": {"int": [1, 8]}, "kind": "mlp"}}
    searcher = {"hyperparameters": space, "max_trials": 8, "num_rungs": 2}
    experiment = create(pool, "async_halving", {}, **searcher)
    pool.train(experiment)
    longest = max(pool.people.trials(experiment).trials, key=lambda each: each.length)
    request = wire.VerifyRequest(request=uuid.uuid4().hex)
    view = pool.people.verify_trial(experiment, longest.trial, request)
    assert pool.people.verify_trial(experiment, longest.trial, request).experiment == view.experiment
    assert pool.train(view.experiment).state == "COMPLETED"
    [again] = pool.people.trials(view.experiment).trials
    assert (again.hparams, again.seed) == (longest.hparams, longest.seed)
    kept = pool.people.trial_results(experiment, longest.trial)
    assert pool.people.trial_results(view.experiment, 1) == kept
    assert len(kept.results) > 1 and all(each.digest for each in kept.results)
    listed = [each.experiment for each in pool.people.experiments().experiments]
    assert view.experiment not in listed and experiment in listed
    assert view.experiment in [each.experiment for each in pool.people.experiments(is_archived=True).experiments]


def test_a_trial_without_results_cannot_be_verified(pools: Callable[..., ToyPool]) -> None:
    pool = pools()
    people, experiment = pool.people, create(pool, "single", {})
    with refused("verify-without-results", Refused):
        people.verify_trial(experiment, 1, wire.VerifyRequest(request="x"))
    with refused("trial-unknown", Refused):
        people.trial_results(experiment, 2)
