"""The trace of a search has what the simulation needs to take as long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import pool_trace
from benchmarks.pool_trace import PoolTrace, replayed_s
from everstep.search.config import read_searcher
from everstep.search.events import CreateTrial
from everstep.search.read_space import read_space
from everstep.search.search import Search

SPACE = {"lr": {"log": [1e-4, 1e-1]}}
SEARCHER = {"name": "random", "metric": "loss", "max_trials": 4, "max_length": {"batches": 8}}


def trace(**changes: Any) -> PoolTrace:
    operations = Search.begin(read_searcher(SEARCHER), read_space(SPACE), 0).start()
    hparams = [dict(each.hparams) for each in operations if isinstance(each, CreateTrial)]
    given: dict[str, Any] = {
        "num_slots": 2,
        "searcher": SEARCHER,
        "hyperparameters": SPACE,
        "seed": 0,
        "min_slots": 1,
        "max_slots": 1,
        "results": [(each, 8, each["lr"]) for each in hparams],
        "batches_per_s": {1: 4.0},
        "start_s": 0.5,
        "regroup_s": 0.0,
        "leave_s": 0.25,
        "validate_s": 0.25,
        "makespan_s": 6.0,
    }
    return PoolTrace(**{**given, **changes})


def test_the_simulation_takes_as_long_as_starts_batches_validations_and_ends_together() -> None:
    assert replayed_s(trace()) == pytest.approx(2 * (0.5 + 8 / 4 + 0.25) + 0.25)
    assert replayed_s(trace(num_slots=4)) == pytest.approx(0.5 + 8 / 4 + 0.25)


def test_a_trace_is_the_same_after_it_was_written_and_read(tmp_path: Path) -> None:
    pool_trace.write(trace(), tmp_path / "trace.json")
    assert replayed_s(pool_trace.read(tmp_path / "trace.json")) == replayed_s(trace())


def test_speeds_are_those_of_batches_without_comings_goings_and_validations() -> None:
    alone = np.arange(0.0, 4.0, 0.5)  # two micro-batches a batch, one worker: 4 batches of a second
    first, second = np.arange(5.0, 9.0, 1.0), np.arange(5.0, 9.0, 1.0) + 0.1  # with another one, after a stop
    steps = list(pool_trace._steps([np.concatenate([alone, first]), second], 2, validated=[7.5]))
    assert [(each.size, round(each.seconds, 3)) for each in steps if each.is_change] == [(2, 2.0)]
    assert [(each.size, round(each.seconds, 3)) for each in steps if not each.is_change] == [
        *[(1, 1.0)] * 3,
        *[(2, 1.0)] * 2,
    ]
    assert pool_trace._speeds(steps) == {1: pytest.approx(1.0), 2: pytest.approx(1.0)}
