"""In exact order there is one search: for any number of trials at once, and for posts in any order, twice or late."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.search.world import World, noise

from everstep.search.config import read_searcher
from everstep.search.events import StopTrial, TrainTo
from everstep.search.preview import preview
from everstep.search.read_space import read_space
from everstep.search.space import Space

SPACE = read_space({"lr": {"log": [1e-5, 1e-1]}, "n": {"int": [1, 8]}, "opt": {"name": {"choice": ["adam", "sgd"]}}})
WHYS = ("ERRORED", "USER_CANCELED", "INVALID_HP", "itself")


def halving(**more):
    return {"name": "async_halving", "metric": "loss", "max_length": {"batches": 64}, "num_rungs": 3, **more}


@st.composite
def searchers(draw):
    name = draw(st.sampled_from(["async_halving", "adaptive_asha", "random", "tpe"]))
    given = {"name": name, "metric": "loss", "max_trials": draw(st.integers(1, 40))}
    given["smaller_is_better"] = draw(st.booleans())
    if name in ("async_halving", "adaptive_asha"):
        given["max_length"] = {"batches": draw(st.integers(1, 200))}
        given["divisor"] = draw(st.sampled_from([1.5, 2, 3, 4]))
        if draw(st.booleans()):
            given["cohort"] = draw(st.integers(2, 20))
    elif draw(st.booleans()):
        given["max_length"] = {"batches": 10}
    if name == "async_halving":
        given["num_rungs"] = draw(st.integers(1, 5))
    if name == "adaptive_asha":
        given["mode"] = draw(st.sampled_from(["standard", "aggressive", "conservative"]))
    return read_searcher(given)


@settings(max_examples=150, deadline=None)
@given(
    config=searchers(),
    at_once=st.sampled_from([0, 1, 2, 3, 16]),
    share_of_bad=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    num_values=st.sampled_from([1, 2, 1000]),
    period=st.sampled_from([None, 1, 7, 50]),
    salt=st.integers(0, 10**6),
)
def test_one_search_for_every_order_of_events(config, at_once, share_of_bad, num_values, period, salt):
    def metric(trial, length):
        value = noise("metric", salt, trial, length)
        return math.nan if value < share_of_bad / 5 else int(value * num_values) / num_values

    def fate(trial, length):
        is_bad = noise("fate", salt, trial, length) < share_of_bad / 3
        return WHYS[int(noise("why", salt, trial, length) * 4)] if is_bad else None

    def run(order, at_once):
        config_here = replace(config, max_concurrent_trials=at_once)
        world = World(config=config_here, space=SPACE, metric=metric, fate=fate, period=period, order=order)
        return world.run(), world

    quiet, calm = run(None, 1)
    search, wild = run(random.Random(salt), at_once)
    assert quiet.is_done and search.is_done
    assert search.save() == quiet.save()
    assert search.best == quiet.best and search.progress == quiet.progress
    assert {n: (e.hparams, e.seed) for n, e in wild.created.items()} == {
        n: (e.hparams, e.seed) for n, e in calm.created.items()
    }
    assert {each for each in stops(wild) if not is_over_by_itself(wild, each)} == {
        each for each in stops(calm) if not is_over_by_itself(calm, each)
    }


def stops(world: World) -> set[tuple[int, str]]:
    return {(each.trial, each.reason) for each in world.operations if isinstance(each, StopTrial)}


def is_over_by_itself(world: World, stop: tuple[int, str]) -> bool:
    """Whether the trial was over anyway: then its stop is not needed, and may not have been said."""
    return any(world.fate(stop[0], length) for length in {1, *all_lengths(world)})


def all_lengths(world: World) -> set[int]:
    return {each.length for each in world.operations if isinstance(each, TrainTo) and each.length}


@settings(max_examples=60, deadline=None)
@given(config=searchers(), salt=st.integers(0, 10**6))
def test_the_preview_of_an_exact_search_comes_true(config, salt):
    world = World(config=config, space=Space(), metric=lambda trial, length: noise(salt, trial, length))
    world.run()
    trained: dict[int, int] = dict(world.reached)
    promised = {length: number for number, length in preview(config, Space()).lines if number}
    if config.max_length is None:
        assert promised == {"full": len(trained)}
    else:
        assert promised == {length: list(trained.values()).count(length) for length in set(trained.values())}


def test_arrival_order_gives_another_search_for_another_order_of_events():
    """So the tests above can fail."""
    config = read_searcher(halving(max_trials=27, divisor=3, order="arrival"))
    saved = []
    for salt in range(5):
        world = World(config=config, space=SPACE, metric=lambda t, n: noise(t, n), order=random.Random(salt))
        world.run()
        saved.append({trial: length for trial, length in world.reached.items() if length == 64})
    assert len({tuple(sorted(each)) for each in saved}) > 1


def test_a_decision_says_its_numbers():
    config = read_searcher(halving(max_trials=16, divisor=4, num_rungs=2))
    world = World(config=config, space=Space(), metric=lambda trial, length: trial / 100)
    world.run()
    reasons = {each.trial: each.reason for each in world.operations if isinstance(each, StopTrial)}
    assert reasons[7] == "0.07 is 7th of 16 at 16 batches; the best 4 continue"
    assert reasons[2] == "0.02 at 64 batches, the full length"
    promotions = [each for each in world.operations if isinstance(each, TrainTo) and each.length == 64]
    assert promotions[0].reason == "0.01 at 16 batches is among the best 4 of its cohort"


def test_a_metric_that_is_not_finite_is_the_worst_and_is_said():
    config = read_searcher(halving(max_trials=4, divisor=2, num_rungs=2, smaller_is_better=False))
    values = {1: math.nan, 2: -5.0, 3: math.inf, 4: 1.0}
    world = World(config=config, space=Space(), metric=lambda trial, length: values[trial])
    search = world.run()
    assert {each.trial for each in world.operations if isinstance(each, TrainTo) and each.length == 64} == {2, 4}
    reasons = {each.trial: each.reason for each in world.operations if isinstance(each, StopTrial)}
    assert reasons[3] == "no finite metric (the worst value) is 4th of 4 at 32 batches; the best 2 continue"
    assert search.best == (4, 1.0, 32)


def test_invalid_hyperparameters_are_replaced_by_a_number_that_does_not_depend_on_timing():
    config = read_searcher(halving(max_trials=9, divisor=3))
    fates = {2: "INVALID_HP", 5: "INVALID_HP", 11: "INVALID_HP"}
    world = World(
        config=config, space=SPACE, metric=lambda t, n: float(t), fate=lambda t, n: fates.get(t), order=random.Random(3)
    )
    search = world.run()
    assert sorted(world.created) == [*range(1, 10), 11, 14, 20]
    assert world.created[20].reason == "instead of trial 11, whose hyperparameters were invalid"
    assert search.is_done


def test_a_space_without_any_valid_sample_ends_the_search():
    config = read_searcher({"name": "random", "metric": "loss", "max_trials": 2, "max_length": {"batches": 5}})
    world = World(config=config, space=SPACE, metric=lambda t, n: 0.0, fate=lambda t, n: "INVALID_HP")
    assert world.run().is_done
    assert len(world.created) == 2 * 21
    halved = World(config=read_searcher(halving(max_trials=3)), space=SPACE, metric=world.metric, fate=world.fate)
    assert halved.run().is_done


def test_a_trial_that_validates_rarely_counts_with_its_next_result():
    config = read_searcher(halving(max_trials=4, divisor=2, num_rungs=3))  # 16, 32, 64
    world = World(config=config, space=Space(), metric=lambda trial, length: trial + length / 1000, period=40)
    search = world.run()
    assert search.is_done and world.reached == {1: 80, 2: 40, 3: 40, 4: 40}
    results = {each["number"]: each["results"] for each in search.save()["trials"]}
    assert results[1] == [[16, 1.04], [32, 1.04], [64, 1.08]] and results[2] == [[16, 2.04], [32, 2.04]]


@pytest.mark.parametrize("at_once", [1, 3, 16])
def test_no_more_trials_train_at_once_than_allowed(at_once):
    config = read_searcher(halving(max_trials=30, divisor=2, num_rungs=4, max_concurrent_trials=at_once))
    world = World(config=config, space=Space(), metric=noise, order=random.Random(1))
    search = world.run()
    assert search.is_done
    busy, most = set(), 0
    replay = World(config=config, space=Space(), metric=noise)
    deliver = replay._deliver

    def watched() -> None:
        nonlocal busy, most
        most = max(most, sum(each["state"] == "training" for each in replay.search.save()["trials"]))
        deliver()

    replay._deliver = watched
    replay.run()
    assert most == min(at_once, 30)


def test_a_sample_depends_on_seed_number_and_path_only():
    more = read_space(
        {"zz": {"int": [1, 9]}, "opt": {"name": {"choice": ["adam", "sgd"]}}, "lr": {"log": [1e-5, 1e-1]}}
    )
    for number in range(50):
        first, second = SPACE.sample(7, number), more.sample(7, number)
        assert first["lr"] == second["lr"] and first["opt"] == second["opt"]
    assert SPACE.sample(7, 1) != SPACE.sample(8, 1) != SPACE.sample(8, 2)
