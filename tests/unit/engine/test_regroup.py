"""A worker's way from generation to generation, state by state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from everstep.engine.backend import BackendFacts
from everstep.engine.fixed_world import LoneMembership
from everstep.engine.group import Group
from everstep.engine.leadership import MemberHello
from everstep.engine.leaving import Leaving
from everstep.engine.regroup import EngineState, state_after
from everstep.engine.step import Engine
from everstep.engine.world import World
from everstep.errors import PermanentError
from everstep.ipc.progress_page import ProgressPage
from everstep.native import ElasticTrainer


class Generations(LoneMembership):
    """As many generations as are asked for, each with this worker as its only member."""

    def __init__(self, *, is_newcomer: bool = False) -> None:
        super().__init__()
        self.is_newcomer = is_newcomer
        self.refusals = 0  # of the next requests to leave
        self.is_present_one_closed = False

    def is_closed(self, generation: int) -> bool:
        return self.is_present_one_closed

    def next_group(self, after: int) -> Group:
        self.is_present_one_closed = False
        return Group(World(generation=after + 1, rank=0, size=1))

    def may_leave(self, generation: int, step: int, reason: str, *, is_asked: bool = False) -> bool:
        if not self.refusals:
            return True
        self.refusals -= 1
        self.is_present_one_closed = True
        return False


class Worker:
    def __init__(self, *, is_newcomer: bool = False) -> None:
        self.membership = Generations(is_newcomer=is_newcomer)
        self.engine = Engine(lambda board, closed: self.membership, ProgressPage())
        self.model = nn.Linear(1, 1)
        self.trainer = ElasticTrainer(self.model, micro_batches=1, engine=self.engine)
        self.optimizer = self.trainer.prepare(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def train_one_step(self) -> None:
        with self.trainer.step():
            self.model(torch.ones(1, 1)).sum().backward()
            self.optimizer.step()

    @property
    def at(self) -> tuple[EngineState, int]:
        """Its state, and its generation."""
        return self.engine.regrouping.state, self.engine.world.generation


@pytest.fixture
def worker() -> Any:
    worker = Worker()
    yield worker
    worker.engine.close()


def test_one_of_the_first_workers_has_a_group_before_it_settles_in_it(worker: Worker) -> None:
    assert worker.at == (EngineState.NEW, 0)
    worker.engine.regrouping.join()
    assert worker.at == (EngineState.MUST_SETTLE, 1)
    worker.train_one_step()
    assert worker.at == (EngineState.SETTLED, 1)


def test_a_newcomer_stays_alone_until_its_first_step() -> None:
    worker = Worker(is_newcomer=True)
    worker.engine.regrouping.join()
    assert worker.at == (EngineState.ALONE, 0)
    worker.train_one_step()
    assert worker.at == (EngineState.SETTLED, 1)
    worker.engine.close()


def test_when_newcomers_wait_all_regroup_after_the_step(worker: Worker) -> None:
    worker.train_one_step()
    worker.membership.newcomers = 1
    worker.train_one_step()
    assert worker.at == (EngineState.MUST_REGROUP, 1)
    worker.membership.newcomers = 0
    worker.train_one_step()
    assert worker.at == (EngineState.SETTLED, 2)


def test_when_a_generation_closes_the_next_micro_batch_is_of_the_next_one(worker: Worker) -> None:
    worker.train_one_step()
    worker.membership.is_present_one_closed = True
    assert worker.engine.regrouping.is_due
    worker.train_one_step()
    assert worker.at == (EngineState.SETTLED, 2)
    assert worker.engine.step == 2


def test_a_worker_asked_to_leave_finishes_its_step_and_takes_no_other(worker: Worker) -> None:
    worker.train_one_step()
    worker.engine.regrouping.is_asked_to_leave = True  # SIGTERM
    worker.train_one_step()
    assert worker.at == (EngineState.LEAVING, 1)
    with pytest.raises(Leaving):
        worker.train_one_step()
    assert worker.engine.step == 2


def test_a_worker_that_is_still_needed_settles_again_and_then_leaves(worker: Worker) -> None:
    worker.train_one_step()
    worker.membership.refusals = 1
    worker.engine.regrouping.leave("its script ended")
    assert worker.at == (EngineState.LEAVING, 2)


def test_a_worker_asked_to_leave_that_is_still_needed_takes_a_further_step_and_then_leaves(worker: Worker) -> None:
    worker.train_one_step()
    worker.engine.regrouping.is_asked_to_leave = True  # SIGTERM
    worker.membership.refusals = 1
    worker.train_one_step()
    worker.train_one_step()
    assert worker.at == (EngineState.LEAVING, 2)
    assert worker.engine.step == 3
    with pytest.raises(Leaving):
        worker.train_one_step()


def test_a_worker_that_never_trained_may_leave_at_once(worker: Worker) -> None:
    worker.engine.regrouping.leave("its script ended")
    assert worker.at == (EngineState.LEAVING, 0)


def test_an_update_that_broke_off_is_final_where_no_peer_holds_the_state(worker: Worker) -> None:
    worker.train_one_step()
    with pytest.raises(ZeroDivisionError), worker.trainer.step():
        worker.model(torch.ones(1, 1)).sum().backward()
        worker.engine.update(lambda: 1 / 0, is_final=True)
    assert not worker.engine.is_whole
    with pytest.raises(PermanentError) as caught:
        worker.train_one_step()
    assert caught.value.code == "update-broke-off"


def hello(*, settled: int, is_agreeing: bool) -> MemberHello:
    return MemberHello(
        worker="w", job="", settled=settled, step=0, is_dirty=False, is_unfinished=False, layout="",
        num_micro_batches=1, is_exact=True, torch="", is_agreeing=is_agreeing, neighbors=[], inlet=[], held=[],
        answers={}, backend=BackendFacts(worker="w", wish="auto", device="cpu"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("others", "newcomer", "after"),
    [
        (hello(settled=3, is_agreeing=True), hello(settled=0, is_agreeing=False), EngineState.MUST_SETTLE),
        (hello(settled=3, is_agreeing=False), hello(settled=0, is_agreeing=False), EngineState.SETTLED),
        (hello(settled=3, is_agreeing=True), hello(settled=3, is_agreeing=False), EngineState.SETTLED),
    ],
)
def test_a_newcomer_that_comes_between_two_steps_gets_the_state_again_at_the_next(
    others: MemberHello, newcomer: MemberHello, after: EngineState
) -> None:
    assert state_after([others, newcomer]) is after


class Peers(Generations):
    """Each generation has as many members as the test says."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes = list(sizes)

    def next_group(self, after: int) -> Group:
        group = Group(World(generation=after + 1, rank=0, size=1))
        group.world = World(generation=after + 1, rank=0, size=self.sizes.pop(0))
        group.take_link(BrokenLink())  # type: ignore[arg-type]
        return group


class BrokenLink:
    error = "NCCL error: remote process exited"

    def abort(self, why: str = "") -> None: ...


@pytest.mark.parametrize(("sizes", "num_errors"), [((4, 3, 2, 1), 0), ((4, 4, 4, 3), 2)])
def test_an_error_caused_by_the_death_of_a_peer_does_not_count_against_nccl(
    sizes: tuple[int, ...], num_errors: int
) -> None:
    engine = Engine(lambda board, closed: Peers(*sizes), ProgressPage())
    for _ in sizes:
        engine.regrouping._take_group()
    assert engine.work.device_way.num_errors == num_errors
    engine.close()
