"""The connection between devices: given up at once, by any thread, whatever it is doing; it ends in the background."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from everstep.engine import background, device_link
from everstep.engine.backend import Backend
from everstep.engine.communicator import Communicator, Pieces, QueuedWork
from everstep.engine.device_link import MOST_DYING, DeviceLink
from everstep.engine.group import FORM_S, Group
from everstep.engine.world import World
from everstep.errors import PeerLost, PermanentError
from lab.command import until

QUICK_S = 5.0  # on a busy machine; any time limit inside is longer
CPU = torch.device("cpu")


class Stubborn:
    """A communicator whose end takes as long as the test wants, as NCCL's may."""

    def __init__(self) -> None:
        self.may_end, self.num_ends = threading.Event(), 0

    def exchange(self, sends: Pieces, recvs: Pieces) -> QueuedWork:
        return self

    def all_reduce(self, tensor: torch.Tensor) -> QueuedWork:
        return self

    def wait(self) -> None: ...

    def end(self) -> None:
        self.num_ends += 1
        assert self.may_end.wait(60)


class Link(DeviceLink):
    """A link over a communicator that the test provides."""

    def __init__(self, generation: int, make: Callable[[], Communicator]) -> None:
        self._make = make  # type: ignore[method-assign]
        group = Group(World(generation=generation, rank=0, size=1))
        super().__init__(group, Backend.STAND_IN, CPU, is_exact=True)


@pytest.fixture(autouse=True)
def quick_patience(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(device_link, "DYING_S", 0.2)
    yield
    background.wait(QUICK_S)
    assert not device_link._dying


@pytest.fixture
def stubborn() -> Iterator[Callable[[], Stubborn]]:
    made: list[Stubborn] = []

    def make() -> Stubborn:
        made.append(Stubborn())
        return made[-1]

    yield make
    for each in made:
        each.may_end.set()


def seconds_of(call: Callable[[], None]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_an_abort_does_not_wait_for_the_end_and_the_second_one_does_nothing(
    stubborn: Callable[[], Stubborn],
) -> None:
    communicator = stubborn()
    link = Link(1, lambda: communicator)
    assert link.await_connected(QUICK_S) is communicator
    assert seconds_of(lambda: link.abort("a peer is lost")) < 1.0
    assert seconds_of(link.abort) < 1.0
    with pytest.raises(PeerLost, match="generation 1 was closed"):
        link.await_connected()
    with pytest.raises(PeerLost):
        link.check()
    assert not link.is_ended
    communicator.may_end.set()
    until(lambda: link.is_ended, timeout_s=QUICK_S)
    link.abort()
    background.wait(QUICK_S)
    assert communicator.num_ends == 1
    assert link.error == ""  # nothing failed


def test_a_communicator_that_is_made_too_late_is_ended_at_once() -> None:
    begun, may_go_on, communicator = threading.Event(), threading.Event(), Stubborn()
    communicator.may_end.set()

    def make() -> Stubborn:
        begun.set()
        assert may_go_on.wait(60)
        return communicator

    link = Link(1, make)
    assert begun.wait(QUICK_S)
    link.abort()
    may_go_on.set()
    until(lambda: link.is_ended, timeout_s=QUICK_S)
    assert communicator.num_ends == 1
    with pytest.raises(PeerLost):
        link.await_connected()


def lonely_group(port: int) -> Group:
    """One rank of two, whose peer never comes."""
    group = Group(World(generation=1, rank=0, size=1), address="127.0.0.1", purpose="engine")
    group.world = replace(group.world, size=2, store_address="127.0.0.1", store_port=port)
    return group


def num_forming() -> int:
    return sum(thread.name == "everstep-link" for thread in threading.enumerate())


@pytest.mark.parametrize("is_waiting", [True, False])
def test_an_abort_while_it_forms_ends_the_forming(is_waiting: bool) -> None:
    """With a peer that died meanwhile, forming would continue for as long as a group may take to form."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
    for _ in range(1 if is_waiting else 10):  # anywhere before it waits
        link = DeviceLink(lonely_group(server.port), Backend.STAND_IN, CPU, is_exact=True)
        if is_waiting:
            until(lambda: server.num_keys() > 0, timeout_s=QUICK_S)
        link.abort()
        with pytest.raises(PeerLost):
            link.await_connected()
        until(lambda: link.is_ended and not num_forming(), timeout_s=FORM_S / 2)  # noqa: B023 (called at once)
        assert link.error == ""


def test_an_error_that_was_raised_keeps_no_link_and_no_socket_alive() -> None:
    def refuse() -> Communicator:
        raise PermanentError("it cannot be made", hint="try another", code="not-made")

    link = Link(1, refuse)
    gc.disable()
    try:
        for _ in range(2):
            with pytest.raises(PermanentError, match="it cannot be made") as caught:
                link.await_connected(QUICK_S)
            assert (caught.value.hint, caught.value.code) == ("try another", "not-made")
        background.wait(QUICK_S)
        known = weakref.ref(link)
        del link, caught
        assert known() is None
    finally:
        gc.enable()


def test_too_many_communicators_that_do_not_end_make_the_worker_exit(stubborn: Callable[[], Stubborn]) -> None:
    dying = [Link(generation, stubborn) for generation in range(1, MOST_DYING + 2)]
    for link in dying:
        link.await_connected(QUICK_S)
    for link in dying[:-1]:
        link.abort(f"w{link._group.world.generation} is lost")
    until(lambda: len(device_link._dying) == MOST_DYING, timeout_s=QUICK_S)
    enough = Link(8, stubborn)
    enough.await_connected(QUICK_S)  # exactly as many as are allowed
    dying[-1].abort("w7 is lost")
    until(lambda: len(device_link._dying) > MOST_DYING, timeout_s=QUICK_S)
    with pytest.raises(PermanentError) as caught:
        Link(9, stubborn).await_connected(QUICK_S)
    assert caught.value.code == "nccl-does-not-end"
    assert caught.value.message == "3 NCCL communicators have not ended; the oldest: generation 1, w1 is lost"
    enough.abort()


def test_a_communicator_that_finally_ends_makes_room_for_the_next(stubborn: Callable[[], Stubborn]) -> None:
    communicators = [stubborn() for _ in range(MOST_DYING + 1)]
    for generation, communicator in enumerate(communicators):
        link = Link(generation, lambda communicator=communicator: communicator)
        link.await_connected(QUICK_S)
        link.abort()
    until(lambda: len(device_link._dying) > MOST_DYING, timeout_s=QUICK_S)
    device_link.DYING_S = QUICK_S
    following = Link(9, stubborn)
    communicators[0].may_end.set()
    following.await_connected(QUICK_S)
    following.abort()


def test_a_link_that_waits_for_others_to_end_is_given_up_at_once(stubborn: Callable[[], Stubborn]) -> None:
    for generation in range(MOST_DYING + 1):
        link = Link(generation, stubborn)
        link.await_connected(QUICK_S)
        link.abort()
    until(lambda: len(device_link._dying) > MOST_DYING, timeout_s=QUICK_S)
    device_link.DYING_S = 60.0
    late = stubborn()
    late.may_end.set()
    following = Link(9, lambda: late)
    until(lambda: num_forming() == 1, timeout_s=QUICK_S)
    following.abort()
    until(lambda: not num_forming(), timeout_s=QUICK_S)
