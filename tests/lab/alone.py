"""A trainer of its own for each test: one worker, alone, in this process."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn

from everstep.engine.fixed_world import LoneMembership
from everstep.engine.step import Engine
from everstep.ipc.progress_page import ProgressPage
from everstep.native import ElasticTrainer

_engines: list[Engine] = []


def make_engine() -> Engine:
    _engines.append(Engine(lambda board, closed: LoneMembership(), ProgressPage()))
    return _engines[-1]


def make_trainer(model: nn.Module, loader: Any = None, micro_batches: int | None = 1, **more: Any) -> ElasticTrainer:
    return ElasticTrainer(model, loader, micro_batches=micro_batches, engine=make_engine(), **more)


@pytest.fixture(autouse=True)
def ended_trainers() -> Iterator[None]:
    yield
    while _engines:
        _engines.pop().close()
    if multiprocessing.active_children():
        gc.collect()  # loader processes end with what holds them
