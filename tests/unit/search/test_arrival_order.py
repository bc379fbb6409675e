"""Arrival order is Determined 0.38's rule: compared with a straight restatement of it, for random events."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.search.config import read_searcher
from everstep.search.events import CreateTrial, StopTrial, TrialEnded, Validated
from everstep.search.search import Search
from everstep.search.space import Space


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


def shown(operations):
    kinds = {CreateTrial: "create", StopTrial: "stop"}
    return [(kinds[type(each)], each.trial) for each in operations if type(each) in kinds]


def search_over(search):
    return {each["number"] for each in search.save()["trials"] if each["is_over"]}
