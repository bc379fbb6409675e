"""Optuna's samplers, in a process of their own: the same trials for every number of slots and every restart."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import pytest
from unit.search.world import World, noise

from everstep.errors import UsageError
from everstep.search import optuna_process
from everstep.search.config import read_searcher
from everstep.search.events import Ask, Suggested
from everstep.search.optuna_process import question
from everstep.search.search import Search
from everstep.search.space import Space

GIVEN = {
    "lr": {"log": [1e-5, 1e-1]},
    "layers": {"int": [1, 8]},
    "opt": {"name": {"choice": ["adam", ["sgd", 1]]}, "decay": {"double": [0, 1]}},
    "width": 64,
}


class OptunaProcess:
    def __init__(self, sampler: str) -> None:
        self.sampler = sampler
        self.child = None

    def __call__(self, ask: Ask, **more) -> dict:
        if self.child is None:
            command = [sys.executable, "-m", "everstep.search.optuna_process"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self.child = subprocess.Popen(command, text=True, env=dict(os.environ), **pipes)
        given = {"sampler": self.sampler, "seed": 7, "smaller_is_better": True, "hyperparameters": GIVEN, **more}
        asked = question(ask, **given)
        self.child.stdin.write(json.dumps(asked) + "\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())

    def kill(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child.communicate()
            self.child = None


@pytest.fixture
def process(request):
    process = OptunaProcess(request.param)
    yield process
    process.kill()


@pytest.mark.parametrize("process", ["tpe", "cmaes", "qmc", "gp"], indirect=True)
def test_the_same_trials_for_one_slot_and_three_although_the_process_dies(process):
    pytest.importorskip("optuna")

    def run(at_once, order, killed_at=None):
        def model(ask):
            if ask.cohort == killed_at:
                process.kill()  # the next one replays what is in the question
            return process(ask)

        def metric(trial, length):
            return abs(world.created[trial].hparams["lr"] - 0.01) + noise(trial) / 100

        given = {"name": process.sampler, "metric": "loss", "max_trials": 15, "cohort": 5, "max_length": 10}
        config = read_searcher({**given, "max_concurrent_trials": at_once})
        fate = lambda trial, length: "ERRORED" if trial == 3 else None  # noqa: E731
        world = World(config=config, space=Space(), metric=metric, model=model, order=order, fate=fate)
        world.run()
        return {number: each.hparams for number, each in world.created.items()}

    quiet = run(1, None)
    assert sorted(quiet) == list(range(1, 16))
    assert run(3, random.Random(5), killed_at=2) == quiet
    for hparams in quiet.values():
        assert 1e-5 <= hparams["lr"] <= 1e-1 and 1 <= hparams["layers"] <= 8 and hparams["width"] == 64
        assert hparams["opt"]["name"] in ("adam", ["sgd", 1]) and 0 <= hparams["opt"]["decay"] <= 1


def next_cohort(results):
    """After three cohorts, no sampler chooses without regard to the results."""
    told = tuple(enumerate(results, start=1))
    return Ask(cohort=3, trials=(len(told) + 1,), cohort_size=len(told) // 3, results=told)


FIRST = Ask(cohort=0, trials=tuple(range(1, 17)), cohort_size=16, results=())


@pytest.mark.parametrize("process", ["tpe", "cmaes"], indirect=True)  # a Gaussian process needs minutes for these
def test_samples_depend_on_the_seed_the_results_and_which_of_them_are_better(process):
    pytest.importorskip("optuna")
    assert process(FIRST) == process(FIRST) != process(FIRST, seed=8)
    rising = [float(number) for number in range(24)]
    smallest = process(next_cohort(rising))
    assert smallest != process(next_cohort(rising[::-1]))
    assert smallest != process(next_cohort(rising), smaller_is_better=False)
    assert smallest == process(next_cohort([-each for each in rising]), smaller_is_better=False)


def test_each_name_has_its_own_sampler():
    pytest.importorskip("optuna")
    samplers = {name: type(optuna_process._sampler(name, 7)).__name__ for name in optuna_process.PACKAGES}
    assert samplers == {"tpe": "TPESampler", "cmaes": "CmaEsSampler", "gp": "GPSampler", "qmc": "QMCSampler"}


@pytest.mark.parametrize("process", ["tpe"], indirect=True)
def test_exponents_are_taken_as_exponents_and_batches_split_evenly(process):
    pytest.importorskip("optuna")
    given = {"x": {"type": "log", "base": 2, "minval": 3, "maxval": 6}, "global_batch_size": {"int": [16, 64]}}
    found = process(FIRST, hyperparameters=given, num_micro_batches=8)
    assert len(found) == 16 and all(8 <= each["x"] <= 64 for each in found.values())
    assert max(each["x"] for each in found.values()) > 32 and min(each["x"] for each in found.values()) < 16
    assert {each["global_batch_size"] % 8 for each in found.values()} == {0}


def test_a_cohort_is_asked_for_when_all_earlier_trials_are_over():
    config = read_searcher({"name": "tpe", "metric": "loss", "max_trials": 5, "cohort": 2, "max_length": 10})
    world = World(config=config, space=Space(), metric=lambda trial, length: float(trial))
    world.run()
    asks = [each for each in world.operations if isinstance(each, Ask)]
    assert [each.trials for each in asks] == [(1, 2), (3, 4), (5,)]
    assert [each.results for each in asks] == [(), ((1, 1.0), (2, 2.0)), ((1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0))]
    assert asks[1].reason == "tpe chooses trials 3 to 4 from 2 results"


def test_samples_for_other_trials_are_refused_and_change_nothing():
    config = read_searcher({"name": "tpe", "metric": "loss", "max_trials": 5, "cohort": 2})
    search = Search.begin(config, Space(), seed=1)
    search.start()
    before = search.save()
    with pytest.raises(Exception, match=r"samples for trials 1, 3, not 1, 2"):
        search.apply(Suggested(cohort=0, hparams={"1": {}, "3": {}}))
    with pytest.raises(UsageError, match="samples for trials a, not 1, 2"):
        search.apply(Suggested(cohort=0, hparams={"a": {}}))
    assert search.save() == before


def test_the_search_imports_neither_optuna_nor_numpy():
    imports = "import sys, everstep.search.search, everstep.search.preview"
    code = f"{imports}; print({{'optuna', 'numpy', 'torch'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
