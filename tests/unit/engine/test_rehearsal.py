"""A newcomer's first body: nothing that it draws, computes or calls leaves a trace; then the newcomer joins."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from everstep import DataLoader
from everstep.engine import communicator, regroup
from everstep.engine.fixed_world import LoneMembership
from everstep.engine.group import Group
from everstep.engine.leaving import Leaving
from everstep.engine.regroup import EngineState
from everstep.engine.seeds import RandomStreams, seed_everything
from everstep.engine.step import Engine
from everstep.engine.world import World
from everstep.ipc.progress_page import ProgressPage
from everstep.native import ElasticTrainer
from everstep.wire import OUTSIDE


class Membership(LoneMembership):
    """A newcomer's membership: the others are at this step. Once it arrives, they are gone; it keeps its own state."""

    def __init__(self, *, is_newcomer: bool = True, step: int = 0) -> None:
        super().__init__()
        self.is_newcomer, self._step = is_newcomer, step

    def others_step(self) -> int:
        return self._step

    def next_group(self, after: int) -> Group:
        return Group(World(generation=1, rank=0, size=1))


class Worker:
    def __init__(self, membership: Membership, *, has_loader: bool = False) -> None:
        self.board = ProgressPage()
        self.engine = Engine(lambda board, closed: membership, self.board)
        self.model = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        samples = TensorDataset(torch.arange(12.0).reshape(12, 1))
        self.loader = DataLoader(samples, batch_size=2) if has_loader else None
        self.trainer = ElasticTrainer(self.model, self.loader, micro_batches=2, engine=self.engine)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        self.optimizer, _, _ = self.trainer.prepare(optimizer, self.scheduler, self.scaler)
        self.seen: list[Any] = []

    def body(self, inputs: torch.Tensor) -> None:
        with self.trainer.step():
            self.seen.append((self.trainer.rank, self.trainer.is_last_micro_batch, self.board.progress.phase))
            loss = self.model(inputs + random.random() + numpy.random.rand()).sum()
            self.trainer.log(loss=loss)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()

    @property
    def state(self) -> dict[str, Any]:
        return {
            "model": {name: value.tolist() for name, value in self.model.state_dict().items()},
            "gradients": [each.grad for each in self.model.parameters()],
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.last_epoch,
            "scale": self.scaler.get_scale(),
            "trainer": self.trainer.state_dict(),
        }


@pytest.fixture
def newcomer() -> Iterator[Worker]:
    worker = Worker(Membership())
    yield worker
    worker.engine.close()


BATCH = torch.ones(2, 1)


def test_the_first_body_of_a_newcomer_leaves_no_trace(newcomer: Worker) -> None:
    seed_everything(5)
    before = newcomer.state
    newcomer.body(BATCH)
    drawn = random.random(), numpy.random.rand(), torch.rand(()).item()
    assert newcomer.state == before
    seed_everything(5)
    assert drawn == (random.random(), numpy.random.rand(), torch.rand(()).item())


def test_a_newcomer_gets_memory_for_the_others_state_before_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    class Observed(Membership):
        def others_state_bytes(self) -> int:
            return 500

        def arrive(self, generation: int) -> None:
            done.append("arrives")

    monkeypatch.setattr(regroup, "StateRoom", done.append)
    worker = Worker(Observed())
    worker.body(BATCH)
    worker.engine.close()
    assert done == [500, "arrives"]


def test_after_its_rehearsal_a_worker_joins_and_its_next_body_counts(newcomer: Worker) -> None:
    newcomer.engine.regrouping.join()
    assert newcomer.engine.regrouping.state is EngineState.ALONE
    newcomer.body(BATCH)
    assert newcomer.engine.regrouping.state is EngineState.SETTLED
    assert newcomer.engine.step == 0
    newcomer.body(BATCH)
    newcomer.body(BATCH)
    assert newcomer.engine.step == 1


def test_in_a_rehearsal_the_worker_is_not_rank_0_not_in_its_last_micro_batch_and_not_in_a_step(
    newcomer: Worker,
) -> None:
    newcomer.body(BATCH)
    assert newcomer.seen == [(1, False, OUTSIDE)]


def test_a_script_does_not_do_after_a_rehearsal_what_it_does_after_a_step(newcomer: Worker) -> None:
    """By then, it holds the state of the others, after many steps."""
    newcomer.body(BATCH)
    newcomer.engine.work.step = 7
    assert (newcomer.trainer.num_steps, newcomer.trainer.rank) == (0, 1)
    assert newcomer.trainer.state_dict()["num_steps"] == 7
    newcomer.engine.next_micro_batch()
    assert (newcomer.trainer.num_steps, newcomer.trainer.rank) == (7, 0)


def test_a_worker_that_begins_with_all_others_does_not_rehearse() -> None:
    worker = Worker(Membership(is_newcomer=False))
    worker.body(BATCH)
    worker.body(BATCH)
    assert worker.engine.step == 1
    worker.engine.close()


def test_reduce_in_a_rehearsal_returns_the_workers_own_value(newcomer: Worker) -> None:
    with newcomer.trainer.step():
        assert newcomer.engine.reduce(3.0, 1.0) == 3.0


def test_a_body_that_raises_is_not_rehearsed_again(newcomer: Worker) -> None:
    before = newcomer.state
    with pytest.raises(ZeroDivisionError), newcomer.trainer.step():
        newcomer.model(BATCH).sum().backward()
        raise ZeroDivisionError
    assert newcomer.state == before
    assert newcomer.engine.regrouping.state is EngineState.ALONE, "it may have been its end"
    newcomer.body(BATCH)
    newcomer.body(BATCH)
    assert newcomer.engine.step == 1


def test_sigterm_in_a_rehearsal_ends_it_at_once(newcomer: Worker) -> None:
    usual = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(Leaving), newcomer.trainer.step():
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("the body continued")
    finally:
        signal.signal(signal.SIGTERM, usual)


def test_after_sigterm_a_newcomer_does_not_rehearse(newcomer: Worker) -> None:
    newcomer.engine.regrouping.join()
    newcomer.engine.regrouping.is_asked_to_leave = True
    with pytest.raises(Leaving):
        newcomer.body(BATCH)
    assert newcomer.seen == []


@pytest.mark.parametrize(("step", "first_epoch"), [(0, 0), (4, 1), (6, 2)])
def test_a_loop_over_epochs_begins_with_the_others_epoch_and_keeps_its_own_data(step: int, first_epoch: int) -> None:
    """An epoch has three steps."""
    worker = Worker(Membership(step=step), has_loader=True)
    assert worker.loader is not None
    position, epochs, samples = worker.loader.state_dict(), [], []
    for epoch in worker.trainer.epochs(3):
        epochs.append(epoch)
        for (inputs,) in worker.loader:
            worker.body(inputs)
            samples.append(inputs.flatten().tolist())
            if len(samples) == 1:
                assert worker.loader.state_dict() | {"done_after": {}} == position | {"done_after": {}}
    assert epochs[0] == first_epoch
    rehearsed, *trained = samples
    assert rehearsed == [0.0, 1.0]
    if first_epoch == 0:
        assert [each for batch in trained for each in batch] == 3 * [float(number) for number in range(12)]
    worker.engine.close()


def test_random_streams_are_restored() -> None:
    seed_everything(9)
    streams = RandomStreams.now()
    drawn = random.random(), numpy.random.rand(), torch.rand(()).item()
    seed_everything(10)
    streams.restore()
    assert drawn == (random.random(), numpy.random.rand(), torch.rand(()).item())


def test_if_nccl_does_not_start_the_newcomer_continues_to_the_trial(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError(
            "NCCL error in: /x.cpp:1, unhandled system error, NCCL version 2.28.9\nLast error: no device"
        )

    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(communicator, "Nccl", fail)
    communicator.start_nccl(torch.device("cuda"))
    assert caplog.messages == ["NCCL does not start: unhandled system error"]
