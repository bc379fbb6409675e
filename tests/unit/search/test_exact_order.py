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
from everstep.search.events import CreateTrial, StopTrial, TrainTo, TrialEnded, Validated
from everstep.search.preview import preview
from everstep.search.read_space import read_space
from everstep.search.search import Search
from everstep.search.space import Space
from lab.length import usual

SPACE = read_space({"lr": {"log": [1e-5, 1e-1]}, "n": {"int": [1, 8]}, "opt": {"name": {"choice": ["adam", "sgd"]}}})
WHYS = ("ERRORED", "USER_CANCELED", "INVALID_HP", "itself")


def halving(**more):
    return {"name": "async_halving", "metric": "loss", "max_length": {"batches": 64}, "num_rungs": 3, **more}


ENDS = st.tuples(st.integers(1, 50), st.integers(51, 100))
RANGES = st.one_of(
    ENDS.map(lambda ends: {"int": [*ends], "count": 3}),
    ENDS.map(lambda ends: {"double": [*ends], "count": 2}),
    ENDS.map(lambda ends: {"log": [*ends], "count": 2}),
    ENDS.map(lambda ends: {"type": "log", "base": 2, "minval": -ends[1], "maxval": -ends[0], "count": 2}),
    st.lists(st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2)), min_size=1, max_size=3)
    .map(lambda values: {"choice": values}),
    st.one_of(st.integers(), st.booleans(), st.lists(st.integers(), max_size=2), st.just({})),
)  # fmt: skip
NAMES = st.text("abcde", min_size=1, max_size=2)
SPACES = st.dictionaries(NAMES, st.one_of(RANGES, st.dictionaries(NAMES, RANGES, max_size=2)), min_size=1, max_size=3)


@st.composite
def searchers(draw, names=("async_halving", "adaptive_asha", "random", "tpe")):
    name = draw(st.sampled_from(names))
    given = {"name": name, "metric": "loss"}
    if name not in ("single", "grid"):
        given["max_trials"] = draw(st.integers(1, 40))
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
    config=searchers(("async_halving", "adaptive_asha", "random", "tpe", "grid", "single")),
    hyperparameters=SPACES,
    at_once=st.sampled_from([0, 1, 2, 3, 16]),
    share_of_bad=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    num_values=st.sampled_from([1, 2, 1000]),
    period=st.sampled_from([None, 1, 7, 50]),
    salt=st.integers(0, 10**6),
)
def test_one_search_for_every_order_of_events(config, hyperparameters, at_once, share_of_bad, num_values, period, salt):
    space = read_space(hyperparameters)

    def metric(trial, length):
        value = noise("metric", salt, trial, length)
        return math.nan if value < share_of_bad / 5 else int(value * num_values) / num_values

    def fate(trial, length):
        is_bad = noise("fate", salt, trial, length) < share_of_bad / 3
        return WHYS[int(noise("why", salt, trial, length) * 4)] if is_bad else None

    def run(order, at_once):
        config_here = replace(config, max_concurrent_trials=at_once)
        world = World(config=config_here, space=space, metric=metric, fate=fate, period=period, order=order)
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


@pytest.mark.parametrize(
    ("given", "num_created"),
    [
        ({"name": "random"}, 3 * 21),
        ({}, 3 * 21),
        ({"order": "arrival"}, 3 * 21),
        ({"order": "arrival", "stop_once": False}, 3 * 21),
        ({"name": "tpe"}, 3),
    ],
    ids=str,
)
def test_a_space_without_any_valid_sample_ends_the_search_in_error(given, num_created):
    given = {"name": "async_halving", "metric": "loss", "max_trials": 3, "max_length": {"batches": 5}, **given}
    trials = range(1, num_created + 1)
    world = World(
        config=read_searcher(given),
        space=SPACE,
        metric=lambda trial, length: 0.0,
        fate=lambda trial, length: "INVALID_HP" if trial in trials else None,
    )
    assert world.run().is_done
    assert len(world.created) == num_created
    assert (world.operations[-1].state, world.operations[-1].reason) == (
        "ERROR",
        "all 3 trials had invalid hyperparameters",
    )


def test_a_trial_that_validates_rarely_counts_with_its_next_result():
    config = read_searcher(halving(max_trials=4, divisor=2, num_rungs=3))  # 16, 32, 64
    world = World(config=config, space=Space(), metric=lambda trial, length: trial + length / 1000, period=40)
    search = world.run()
    assert search.is_done and world.reached == {1: 80, 2: 40, 3: 40, 4: 40}
    results = {each["number"]: each["results"] for each in search.save()["trials"]}
    assert results[1] == [[16, 1.04], [32, 1.04], [64, 1.08]] and results[2] == [[16, 2.04], [32, 2.04]]


def test_a_script_that_does_not_wait_at_rungs_has_the_same_search():
    config = read_searcher(halving(max_trials=9, divisor=3))  # 7, 21, 64
    in_turn = run_on(config, lambda queues: max(queues, key=lambda number: len(queues[number])))
    one_by_one = run_on(config, min)
    assert in_turn == one_by_one
    assert sorted(map(len, in_turn[0].values())) == [1] * 6 + [2] * 2 + [3]


def run_on(config, choose):
    """Each trial reports after every batch, and ends at the last one, whenever its rungs are decided."""
    search = Search.begin(config, SPACE, 7)
    operations, queues = search.start(), {}
    while not search.is_done:
        for each in operations:
            if isinstance(each, CreateTrial):
                posts = [Validated(trial=each.trial, length=n, metric=noise(each.trial, n)) for n in range(1, 65)]
                queues[each.trial] = [*posts, TrialEnded(trial=each.trial, why=None, length=64)]
            elif isinstance(each, StopTrial) and each.trial in queues:
                queues[each.trial] = [TrialEnded(trial=each.trial, why=None, length=65 - len(queues[each.trial]))]
        assert queues, "all scripts have ended, and the search has not"
        number = choose(queues)
        operations = search.apply(queues[number].pop(0))
        queues = {trial: posts for trial, posts in queues.items() if posts}
    return {each["number"]: each["results"] for each in search.save()["trials"]}, search.best


def test_a_cohort_is_decided_before_the_next_one_has_any_result():
    config = read_searcher(halving(max_trials=8, divisor=4, num_rungs=2, cohort=4))
    search = Search.begin(config, Space(), 7)
    search.start()
    assert [search.apply(Validated(trial=trial, length=16, metric=trial / 10)) for trial in (1, 2, 3)] == [[]] * 3
    decided = search.apply(Validated(trial=4, length=16, metric=0.4))
    assert [(type(each), each.trial) for each in decided] == [*((StopTrial, n) for n in (2, 3, 4)), (TrainTo, 1)]
    assert decided[0].reason == "0.2 is 2nd of 4 at 16 batches; only the best one continues"


@pytest.mark.parametrize("lengths", [(40, 48), (48, 40)])
def test_of_results_past_a_rung_the_first_by_length_counts(lengths):
    search = Search.begin(read_searcher(halving(max_trials=2, divisor=2, num_rungs=2)), Space(), 7)
    search.start()
    for length in lengths:
        search.apply(Validated(trial=1, length=length, metric={40: 0.1, 48: 0.9}[length]))
    (stop, promotion) = search.apply(Validated(trial=2, length=32, metric=0.5))
    assert (stop.trial, promotion.trial, promotion.length) == (2, 1, 64)
    assert search.apply(Validated(trial=1, length=36, metric=0.7)) == []  # too late: the rung is decided
    assert search.best == (1, 0.1, 32)


@settings(max_examples=usual(100, long=1000), deadline=None)
@given(
    num_trials=st.integers(2, 12),
    num_rungs=st.integers(1, 4),
    divisor=st.sampled_from([1.5, 2, 3]),
    lengths=st.lists(st.integers(1, 80), min_size=1, max_size=6, unique=True).map(sorted),
    salt=st.integers(0, 10**6),
)
def test_results_past_a_rung_may_come_in_any_order_until_it_is_decided(num_trials, num_rungs, divisor, lengths, salt):
    """The last trial, which decides, reports in order."""
    more = {"max_trials": num_trials, "max_concurrent_trials": num_trials, "divisor": divisor, "num_rungs": num_rungs}

    def run(chance):
        search = Search.begin(read_searcher(halving(**more)), Space(), 7)
        search.start()
        posts = [(trial, length) for trial in range(1, num_trials) for length in [*lengths, 100]]
        if chance is not None and num_rungs > 1:
            chance.shuffle(posts)
        for trial, length in [*posts, *((num_trials, length) for length in [*lengths, 100])]:
            search.apply(Validated(trial=trial, length=length, metric=noise(salt, trial, length)))
        return search.save()

    assert run(random.Random(salt)) == run(None)


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
