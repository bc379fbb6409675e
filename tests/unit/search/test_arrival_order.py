"""Arrival order is Determined 0.38's rule: compared with a straight restatement of it, for random events."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.search.config import read_searcher
from everstep.search.events import CreateTrial, StopTrial, TrainTo, TrialEnded, Validated
from everstep.search.search import Search
from everstep.search.space import Space
from lab.length import usual


class Restated:
    """One rung after the other: a list of metrics, sorted; a result goes on if its place is below len/divisor."""

    def __init__(self, lengths, divisor, max_trials, num_at_start):
        self.lengths, self.divisor, self.max_trials = lengths, divisor, max_trials
        self.rungs = [[] for _ in lengths]
        self.at = dict.fromkeys(range(1, num_at_start + 1), 0)
        self.gone, self.num_invalid = set(), 0

    def validated(self, trial, length, metric):
        if trial in self.gone:
            return []
        while length >= self.lengths[self.at[trial]]:
            rung = self.rungs[self.at[trial]]
            place = sum(each < metric for each, _ in rung)
            rung.insert(place, (metric, trial))
            if self.at[trial] == len(self.lengths) - 1 or place >= max(int(len(rung) / self.divisor), 1):
                self.gone.add(trial)
                return [("stop", trial), *self.next()]
            self.at[trial] += 1
        return []

    def ended(self, trial, why):
        was_gone, worst = trial in self.gone, float("inf")
        self.gone.add(trial)
        if why == "INVALID_HP":
            self.num_invalid += 1
            self.rungs = [[each for each in rung if each[1] != trial] for rung in self.rungs]
            return self.create()
        if was_gone:
            return []
        if why is not None:
            self.rungs[self.at[trial]].insert(
                sum(each < worst for each, _ in self.rungs[self.at[trial]]), (worst, trial)
            )
        return self.next()

    def next(self):
        return self.create() if len(self.at) - self.num_invalid < self.max_trials else []

    def create(self):
        self.at[len(self.at) + 1] = 0
        return [("create", len(self.at))]


@settings(max_examples=150, deadline=None)
@given(
    num_rungs=st.integers(1, 4),
    divisor=st.sampled_from([1.5, 2, 3, 4]),
    max_trials=st.integers(1, 20),
    at_once=st.integers(0, 6),
    salt=st.integers(0, 10**6),
)
def test_arrival_order_is_determineds_rule(num_rungs, divisor, max_trials, at_once, salt):
    config = read_searcher(
        {
            "name": "async_halving",
            "metric": "loss",
            "max_trials": max_trials,
            "max_concurrent_trials": at_once,
            "num_rungs": num_rungs,
            "divisor": divisor,
            "max_time": 100,
            "time_metric": "batches",
            "order": "arrival",
        }
    )
    (bracket,) = config.brackets()
    search = Search.begin(config, Space(), seed=1)
    restated = Restated(bracket.lengths, divisor, max_trials, bracket.num_at_start)
    assert shown(search.start()) == [("create", number) for number in restated.at]
    chance, reached = random.Random(salt), {}
    for _ in range(150):
        running = [number for number in restated.at if number not in search_over(search)]
        if not running:
            break
        trial = chance.choice(running)
        if trial in restated.gone or chance.random() < 0.1:
            why = None if trial in restated.gone else chance.choice([None, "ERRORED", "USER_CANCELED", "INVALID_HP"])
            assert shown(search.apply(TrialEnded(trial=trial, why=why))) == restated.ended(trial, why)
        else:
            reached[trial] = reached.get(trial, 0) + chance.randrange(1, 60)
            metric = chance.randrange(5) / 4
            found = search.apply(Validated(trial=trial, length=reached[trial], metric=metric))
            assert shown(found) == restated.validated(trial, reached[trial], metric)


@settings(max_examples=usual(150, long=1500), deadline=None)
@given(
    max_length=st.sampled_from([1, 5, 64]),
    num_rungs=st.integers(1, 4),
    divisor=st.sampled_from([1.5, 2, 4]),
    max_trials=st.integers(1, 12),
    at_once=st.integers(0, 4),
    stop_once=st.booleans(),
    longest_step=st.sampled_from([1, 10, 50]),
    salt=st.integers(0, 10**6),
)
def test_every_search_ends(max_length, num_rungs, divisor, max_trials, at_once, stop_once, longest_step, salt):
    """Trials may overrun their rungs, and may fail or be replaced at any time, also while they wait."""
    search = halving(
        max_length=max_length,
        num_rungs=num_rungs,
        divisor=divisor,
        max_trials=max_trials,
        max_concurrent_trials=at_once,
        stop_once=stop_once,
    )
    chance, targets, reached, stopped = random.Random(salt), {}, {}, set()

    def take(operations):
        targets.update({each.trial: each.length for each in operations if isinstance(each, TrainTo)})
        stopped.update(each.trial for each in operations if isinstance(each, StopTrial))

    take(search.start())
    while not search.is_done:
        training = [trial for trial in search.targets if reached.get(trial, 0) < targets[trial]]
        assert training or stopped & search.targets.keys(), "no trial has anything to do, and the search is not over"
        trial = chance.choice([*search.targets])
        if trial in stopped or chance.random() < 0.1:
            take(search.apply(TrialEnded(trial=trial, why=chance.choice([None, "ERRORED", "INVALID_HP"]))))
        elif trial in training or chance.random() < 0.2:
            reached[trial] = reached.get(trial, 0) + chance.randint(1, longest_step)
            take(search.apply(Validated(trial=trial, length=reached[trial], metric=chance.randrange(5) / 4)))


def test_invalid_hyperparameters_of_a_waiting_trial_do_not_keep_the_others_waiting():
    search = halving(max_length=64, num_rungs=3, divisor=2, max_trials=2, stop_once=False)
    search.start()
    search.apply(Validated(trial=1, length=16, metric=0.1))
    search.apply(TrialEnded(trial=1, why="INVALID_HP"))
    search.apply(Validated(trial=2, length=16, metric=0.2))
    assert shown(search.apply(Validated(trial=3, length=16, metric=0.3))) == [("stop", 3)]
    assert shown(search.apply(Validated(trial=2, length=32, metric=0.2))) == [("stop", 2)]


def test_a_result_past_the_next_rung_counts_there_when_the_trial_is_promoted():
    search = halving(max_length=64, num_rungs=3, divisor=2, max_trials=2, stop_once=False)
    search.start()
    assert search.apply(Validated(trial=1, length=40, metric=0.1)) == []
    stopped = search.apply(Validated(trial=2, length=40, metric=0.2))
    assert shown(stopped) == [("stop", 2), ("stop", 1)]
    assert {each["number"]: each["results"] for each in search.save()["trials"]} == {
        1: [[16, 0.1], [32, 0.1]],
        2: [[16, 0.2]],
    }


def halving(**given):
    length = {"batches": given.pop("max_length")}
    config = {"name": "async_halving", "metric": "loss", "order": "arrival", "max_length": length, **given}
    return Search.begin(read_searcher(config), Space(), seed=1)


def shown(operations):
    kinds = {CreateTrial: "create", StopTrial: "stop"}
    return [(kinds[type(each)], each.trial) for each in operations if type(each) in kinds]


def search_over(search):
    return {each["number"] for each in search.save()["trials"] if each["is_over"]}
