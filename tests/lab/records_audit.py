"""Which records the steps of controlled.py used: each exactly once per epoch, and the weight proves it."""

from __future__ import annotations

import sys
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
        for event in run.events("samples.used", step=lambda step, begun=begun, end=end: begun < step <= end):
            known = used.setdefault(event["step"], event["parts"])
            assert sorted(event["parts"]) == sorted(known), "workers disagree about a step"
        for event in run.events("weight", step=lambda step, begun=begun, end=end: begun < step <= end):
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
