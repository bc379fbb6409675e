"""What a search says about its rungs is what its operations said when it decided, in both orders, whatever happened."""

from __future__ import annotations

import math
import random
import re

import pytest
from unit.search.world import World, noise

from everstep.search.config import read_searcher
from everstep.search.events import StopTrial, TrainTo
from everstep.search.explained_rungs import CUT, FELL, ON_ITS_WAY, PROMOTED, REACHED, UNDECIDED
from everstep.search.read_space import read_space
from everstep.search.search import Search
from everstep.search.space import Space
from lab.length import usual

SPACE = read_space({"lr": {"log": [1e-5, 1e-1]}})
KINDS = {
    "exact": {"name": "async_halving", "num_rungs": 3, "divisor": 3, "cohort": 9},
    "exact brackets": {"name": "adaptive_asha", "divisor": 2, "smaller_is_better": False},
    "arrival": {"name": "async_halving", "num_rungs": 3, "divisor": 3, "order": "arrival"},
    "before 0.38": {"name": "async_halving", "num_rungs": 3, "divisor": 3, "order": "arrival", "stop_once": False},
}
_CUT = re.compile(r"(?P<metric>.+) is (?P<place>\d+)\w\w of (?P<among>\d+) (so far )?at (?P<length>\d+) batches; ")
_BEST = re.compile(r"(?P<metric>.+) at (?P<length>\d+) batches is ")


def config_of(kind, num_trials=30):
    given = {"metric": "loss", "max_length": {"batches": 64}, "max_trials": num_trials, **KINDS[kind]}
    return read_searcher(given)


def members_of(search):
    return {
        (member.trial, rung.length): member
        for cohort in search.explain()
        for rung in cohort.rungs
        for member in rung.members
    }


def shown(metric):
    return "no finite metric (the worst value)" if metric is None else f"{metric:g}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("salt", range(usual(6, long=40)))
def test_the_numbers_are_those_of_the_operations(kind, salt):
    def metric(trial, length):
        value = noise("metric", salt, trial, length)
        return math.nan if value < 0.05 else int(value * 20) / 20  # with ties

    def fate(trial, length):
        return "ERRORED" if noise("fate", salt, trial, length) < 0.1 else None

    world = World(config=config_of(kind), space=SPACE, metric=metric, fate=fate, seed=salt, order=random.Random(salt))
    members = members_of(world.run())
    num_checked = 0
    for each in world.operations:
        if isinstance(each, StopTrial) and (found := _CUT.match(each.reason)):
            member = members[each.trial, int(found["length"])]
            assert (shown(member.metric), member.place, member.compared) == (
                found["metric"], int(found["place"]), int(found["among"]),
            )  # fmt: skip
            assert member.outcome == (REACHED if each.reason.endswith("the full length") else CUT)
            num_checked += 1
        elif isinstance(each, TrainTo) and (found := _BEST.match(each.reason)):
            member = members[each.trial, int(found["length"])]
            assert (shown(member.metric), member.outcome) == (found["metric"], PROMOTED)
            num_checked += 1
    assert num_checked > 3 or kind == "before 0.38"
    assert {each.outcome for each in members.values()} <= {PROMOTED, CUT, REACHED, FELL}, "the search is over"


@pytest.mark.parametrize("kind", ["exact", "exact brackets"])
def test_a_decided_rung_promotes_the_best_and_no_more_than_its_quota(kind):
    world = World(config=config_of(kind), space=SPACE, metric=lambda trial, length: noise(trial, length))
    search = world.run()
    num_trials = {(each.bracket, each.cohort): each.num_trials for each in search.explain()}
    assert sum(num_trials.values()) == 30
    for cohort in search.explain():
        for rung in cohort.rungs[:-1]:
            outcomes = [each.outcome for each in rung.members]
            assert rung.is_decided and outcomes == sorted(outcomes, key=[PROMOTED, CUT].index)
            assert outcomes.count(PROMOTED) == rung.quota
        assert {each.outcome for each in cohort.rungs[-1].members} == {REACHED}


def test_a_rung_that_is_not_decided_says_who_waits_and_for_whom():
    config = read_searcher(
        {"name": "async_halving", "metric": "loss", "max_trials": 3, "num_rungs": 2, "divisor": 3,
         "max_length": {"batches": 9}, "max_concurrent_trials": 3}
    )  # fmt: skip
    search = Search.begin(config, Space(), 1)
    world = World(config=config, space=Space(), metric=lambda trial, length: float(trial))
    world.search, world.reached, world.over, world.sent = search, {}, set(), []
    world._take(search.start())
    for _ in range(2):
        world._deliver()

    ((rung,),) = [each.rungs for each in search.explain()]
    told = [(each.trial, each.metric, each.outcome, each.place, each.compared) for each in rung.members]
    assert told == [(1, 1.0, UNDECIDED, 0, 0), (2, 2.0, UNDECIDED, 0, 0), (3, None, ON_ITS_WAY, 0, 0)]
    assert (rung.length, rung.quota, rung.is_decided) == (3, 1, False)
    world._deliver()
    first, second = search.explain()[0].rungs
    assert [each.outcome for each in first.members] == [PROMOTED, CUT, CUT] and first.is_decided
    assert [(each.trial, each.outcome) for each in second.members] == [(1, ON_ITS_WAY)]


def test_a_search_without_rungs_has_none():
    config = read_searcher({"name": "random", "metric": "loss", "max_trials": 3, "max_length": {"batches": 9}})
    search = Search.begin(config, SPACE, 1)
    search.start()
    assert search.explain() == []
