"""Sums from device to device, in a world of one: which attempts count, and whose memory they write to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from everstep.engine import background, device_sum
from everstep.engine.backend import Backend
from everstep.engine.buckets import lay_out
from everstep.engine.communicator import Communicator, Pieces, QueuedWork, StandIn
from everstep.engine.device_link import DeviceLink
from everstep.engine.group import Group
from everstep.engine.module_buffers import ModuleBuffers
from everstep.engine.plan import plan_step
from everstep.engine.pulse import STEPS, Header, Pulse
from everstep.engine.step_sum import Sum
from everstep.engine.world import World
from everstep.errors import PeerLost
from lab.command import until

WAIT_S = 20.0
WEIGHT = 3.0


class Done:
    def wait(self) -> None: ...


class Noted:
    """Does nothing, which is correct in a world of one, and counts its operations."""

    num_operations = 0

    def exchange(self, sends: Pieces, recvs: Pieces) -> QueuedWork:
        self.num_operations += 1
        return Done()

    def all_reduce(self, tensor: Tensor) -> QueuedWork:
        self.num_operations += 1
        return Done()

    def end(self) -> None: ...


class Lingering(Noted):
    """Its second operation (the first one connects) is aborted only when the test wants: until then, it may write to
    its memory, as does an NCCL kernel that no one waits for."""

    def __init__(self) -> None:
        self.is_inside, self.may_end = threading.Event(), threading.Event()

    def all_reduce(self, tensor: Tensor) -> QueuedWork:
        super().all_reduce(tensor)
        if self.num_operations == 2:
            self.is_inside.set()
            assert self.may_end.wait(WAIT_S)
            tensor.fill_(torch.nan)
        return Done()

    def end(self) -> None:
        assert self.may_end.wait(WAIT_S)


class Worker:
    def __init__(self, *, is_exact: bool) -> None:
        self.model = nn.BatchNorm1d(4)
        parameters = list(self.model.parameters())
        self.sum = Sum(parameters, lay_out(parameters), num_leaves=1, is_exact=is_exact)
        self.buffers = ModuleBuffers([self.model])
        self.groups: list[Group] = []
        target = self.sum.fold.begin(0)
        for view in target.flats.views:
            view.fill_(6.0)
        self.sum.fold.done(target)

    def launch(self, communicator: Communicator | None = None) -> DeviceLink:
        """Begin the next attempt, in its own generation; over the stand-in, or over the test's communicator."""
        world = World(generation=len(self.groups) + 1, rank=0, size=1)
        group = Group(world)
        link = Link(group, communicator) if communicator is not None else new_link(group)
        group.take_link(link)
        self.groups.append(group)
        header = Header(generation=world.generation, step=0, kind=STEPS, weights=(WEIGHT,))
        self.sum.launch(group, plan_step(num_micro_batches=1, size=1), None, header, self.buffers)
        return link

    def finish(self) -> list[Tensor]:
        generation = self.groups[-1].world.generation
        pulse = Pulse(generation=generation, step=0, wants_regroup=False, is_leaving=False, used=b"\1\1")
        return self.sum.finish(pulse, is_closed=False).means.views

    def ready(self) -> None:
        for bucket in range(len(self.sum.layout.buckets)):
            self.sum.ready(bucket)

    def give_up(self) -> None:
        """As happens when the generation closes."""
        self.sum.abort(self.groups[-1].world.generation)
        self.groups[-1].break_()
        with pytest.raises(PeerLost):
            self.finish()
        self.sum.drop()

    @property
    def num_rooms(self) -> int:
        assert self.sum._device is not None
        return len(self.sum._device._rooms)


def new_link(group: Group) -> DeviceLink:
    return DeviceLink(group, Backend.STAND_IN, torch.device("cpu"), is_exact=True)


class Link(DeviceLink):
    def __init__(self, group: Group, communicator: Communicator) -> None:
        self._make = lambda: communicator  # type: ignore[method-assign]
        super().__init__(group, Backend.STAND_IN, torch.device("cpu"), is_exact=False)


@pytest.fixture
def make_worker() -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(**settings: Any) -> Worker:
        made.append(Worker(**settings))
        return made[-1]

    yield make
    for worker in made:
        for group in worker.groups:
            group.close()
        worker.sum.close()
    background.wait(WAIT_S)


def is_mean(views: list[Tensor]) -> bool:
    return all(bool((view == 6.0 / WEIGHT).all()) for view in views)


@pytest.mark.parametrize("is_exact", [True, False])
def test_an_attempt_counts_only_if_nobody_has_aborted_its_link(
    make_worker: Callable[..., Worker], is_exact: bool
) -> None:
    """An aborted operation looks as if it had finished."""
    worker, communicator = make_worker(is_exact=is_exact), Noted()
    link = worker.launch(communicator)
    worker.ready()
    num_expected = 3 if is_exact else 2  # to connect, and for the only run
    until(lambda: communicator.num_operations == num_expected, timeout_s=WAIT_S)
    link.abort("a peer is lost")
    with pytest.raises(PeerLost) as caught:
        worker.finish()
    assert caught.value.code == "link-aborted"
    worker.sum.drop()
    worker.launch()
    assert is_mean(worker.finish())


def test_a_room_that_a_dying_attempt_may_still_write_to_is_not_used_by_the_next(
    make_worker: Callable[..., Worker],
) -> None:
    worker, lingering = make_worker(is_exact=False), Lingering()
    first = worker.launch(lingering)
    worker.ready()
    assert lingering.is_inside.wait(WAIT_S)
    worker.give_up()
    brought = [view.clone() for flats in worker.sum.fold.sums(0, None).values() for view in flats.views]
    assert all(bool((view == 6.0).all()) for view in brought)

    worker.launch()
    means = worker.finish()
    assert is_mean(means)
    lingering.may_end.set()
    until(lambda: first.is_ended and worker.sum._device._rooms[0].is_free, timeout_s=WAIT_S)
    assert is_mean(means)
    assert worker.num_rooms == 2

    worker.sum.forget()
    worker.launch()
    assert is_mean(worker.finish())
    assert worker.num_rooms == 1  # nothing writes to the first room anymore: it is the only one again


def test_without_memory_for_another_room_the_sum_waits_for_the_dying_one(
    make_worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, lingering = make_worker(is_exact=False), Lingering()
    worker.launch(lingering)
    worker.ready()
    assert lingering.is_inside.wait(WAIT_S)
    worker.give_up()

    def refuse(*_: Any) -> None:
        lingering.may_end.set()
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(device_sum, "DeviceRoom", refuse)
    worker.launch()
    assert is_mean(worker.finish())
    assert worker.num_rooms == 1


def test_a_device_without_memory_for_the_first_room_is_an_error(
    make_worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(device_sum, "DeviceRoom", refuse)
    with pytest.raises(torch.OutOfMemoryError):
        make_worker(is_exact=False).launch()


def test_successful_attempts_reuse_one_room(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(is_exact=True)
    for _ in range(5):
        worker.launch()
        assert is_mean(worker.finish())
        worker.sum.forget()
    assert worker.num_rooms == 1


def test_an_error_of_an_operation_is_noted_unless_the_link_was_aborted_before(
    make_worker: Callable[..., Worker],
) -> None:
    class Failing(Noted):
        def exchange(self, sends: Pieces, recvs: Pieces) -> QueuedWork:
            if self.num_operations >= 2:
                raise RuntimeError("NCCL error: remote process exited. Last error:\nframes")
            return super().exchange(sends, recvs)

        def all_reduce(self, tensor: Tensor) -> QueuedWork:
            return self.exchange([], [])

    worker = make_worker(is_exact=True)
    link = worker.launch(Failing())
    with pytest.raises(PeerLost, match="NCCL error: remote process exited"):
        worker.finish()
    assert link.error == "NCCL error: remote process exited"
    worker.sum.drop()
    link = worker.launch(Failing())
    link.await_connected(WAIT_S)
    worker.groups[-1].break_()
    with pytest.raises(PeerLost):
        worker.finish()
    assert link.error == ""
    assert isinstance(new_link(worker.groups[0]).await_connected(WAIT_S), StandIn)


class Failing(Noted):
    """After it has connected."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def all_reduce(self, tensor: Tensor) -> QueuedWork:
        self.threads.append(threading.current_thread())
        if len(self.threads) > 1:
            raise RuntimeError("NCCL communicator was aborted on rank 0")
        return Done()


def test_a_thread_in_which_nccl_failed_is_not_used_again(make_worker: Callable[..., Worker]) -> None:
    """NCCL keeps for each thread whether operations are being grouped there."""
    worker, failing = make_worker(is_exact=False), Failing()
    worker.launch(failing)
    with pytest.raises(PeerLost):
        worker.finish()
    worker.sum.drop()
    used = failing.threads[-1]
    until(lambda: not used.is_alive(), timeout_s=WAIT_S)
    worker.launch()
    assert is_mean(worker.finish())
