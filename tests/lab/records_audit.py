"""Which records the steps of controlled.py used: each exactly once per epoch, and the weight proves it."""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import pairwise

import pytest

from everstep.data.permutation import Permutation
from everstep.testing import Cluster, Result

SEED = 5
END = sys.maxsize


def value(record: int) -> float:
    return (record * 37 % 1009) / 1009


def audit(*runs: tuple[Result | Cluster, int], records: int = 640, epochs: int = 2) -> None:
    """Each run up to a step used every position once, and each step moved the weight by the mean of exactly the records
    that it says it used."""
    used: dict[int, list[list[int]]] = {}
    weights = {0: 0.0}
    for run, end in runs:
        begun = max(used, default=0)
        told: dict[str, dict[int, list[list[int]]]] = defaultdict(dict)
        for event in run.events("samples.used", step=lambda step, begun=begun, end=end: begun < step <= end):
            known = told[event["worker"]].setdefault(event["step"], event["parts"])
            assert sorted(event["parts"]) == sorted(known), "a worker disagrees with itself about a step"
        finished = {event["worker"] for event in run.events("worker.exited", exit_code=0)}
        made_again = agree(used, told, finished)
        for event in run.events("weight", step=lambda step, begun=begun, end=end: begun < step <= end):
            if (event["worker"], event["step"]) not in made_again:
                weights[event["step"]] = event["value"]
            assert event["scheduled"] == event["step"]
    positions = [p for parts in used.values() for start, count in parts for p in range(start, start + count)]
    assert sorted(positions) == list(range(records * epochs))
    orders = [Permutation(records, SEED, epoch) for epoch in range(epochs)]
    for before, after in pairwise(sorted(weights)):
        if after != before + 1:
            continue  # the worker that reports it was killed first
        taken = [p for start, count in used[after] for p in range(start, start + count)]
        mean = sum(value(orders[p // records][p % records]) for p in taken) / len(taken)
        assert weights[after] == pytest.approx(weights[before] - mean), f"step {after}"


def agree(
    used: dict[int, list[list[int]]], told: dict[str, dict[int, list[list[int]]]], finished: set[str]
) -> set[tuple[str, int]]:
    """Put what each worker told about each step into `used`: all tell the same. Only the last step of a worker that was
    lost may have been its own alone. The others then made this step again; returned are such workers and steps."""
    made_again = set()
    for worker, steps in sorted(told.items(), key=lambda each: max(each[1]), reverse=True):
        for step, parts in steps.items():
            if sorted(used.setdefault(step, parts)) != sorted(parts):
                is_own = worker not in finished and step == max(steps) < max(used)
                assert is_own, f"{worker} disagrees with the others about step {step}"
                made_again.add((worker, step))
    return made_again
