"""GroupForming a group is given up from another thread."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroupGloo

from everstep.engine import group, sockets
from everstep.engine.group import (
    FORM_S,
    LARGEST_WORLD,
    Group,
    GroupForming,
    check_size,
    form_s,
    generation_store,
    gloo_words,
)
from everstep.engine.world import World
from everstep.errors import PeerLost, UsageError


def world(port: int) -> World:
    return World(generation=1, rank=1, size=2, store_address="127.0.0.1", store_port=port)


def test_where_nobody_listens_an_attempt_that_is_given_up_ends_before_the_script_does() -> None:
    """Else its thread would come back from C++ into an interpreter that is no more: an abort after the last step."""
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        attempt, ends = GroupForming(), list[str]()

        def form() -> None:
            with pytest.raises(dist.DistNetworkError):
                generation_store(world(dead.getsockname()[1]), "engine", attempt=attempt)
            ends.append("given up")

        thread = threading.Thread(target=form)
        thread.start()
        attempt.give_up()
        thread.join(FORM_S)
        assert ends == ["given up"]
        thread.join()


def test_who_is_alone_asks_nobody_and_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short trial on one slot gathers a dozen times."""
    alone = Group(World(generation=1, rank=0, size=1))
    monkeypatch.setattr(threading.Thread, "start", lambda thread: pytest.fail(f"{thread.name} was started"))
    assert alone.gather(b"mine") == alone.gather(b"mine", [0]) == [b"mine"]
    monkeypatch.undo()
    alone.break_()
    with pytest.raises(PeerLost):
        alone.gather(b"mine")


def test_the_time_for_forming_grows_with_the_world() -> None:
    """Measured on two busy cores: 64 workers took up to 5 s, 128 up to 15 s."""
    assert FORM_S < form_s(2) < 1.1 * FORM_S
    assert form_s(64) > 2 * 5
    assert form_s(128) > 2 * 15


def test_a_world_larger_than_was_tried_is_refused_with_the_number() -> None:
    check_size(LARGEST_WORLD)
    with pytest.raises(UsageError, match=f"{LARGEST_WORLD + 1} workers: none larger than {LARGEST_WORLD}"):
        check_size(LARGEST_WORLD + 1)


def test_another_jobs_keys_of_the_same_generation_are_not_ours() -> None:
    """A dead rank 0's port may be another job's store by now."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
    ours, same, theirs = (
        generation_store(replace(world(server.port), job=job), "engine", 5.0) for job in ("ours", "ours", "theirs")
    )
    ours.set("listener/0", "here")
    assert same.check(["listener/0"])
    assert not theirs.check(["listener/0"])


def test_of_an_error_of_torch_its_words_are_told_and_not_its_frames() -> None:
    frames = "Exception raised from doWait at TCPStore.cpp:570 (most recent call first):\nframe #0: c10::Error"
    told = RuntimeError(
        f"[/pytorch/gloo/transport/tcp/pair.cc:537] Connection closed by peer [127.0.0.1]:1. See\n{frames}"
    )
    assert gloo_words(told) == "Connection closed by peer [127.0.0.1]:1"
    assert (
        gloo_words(RuntimeError(f"wait timeout after 10000ms, keys: /a\n{frames}"))
        == "wait timeout after 10000ms, keys: /a"
    )


def test_a_listener_that_another_thread_opens_at_the_same_instant_is_not_taken_for_gloos(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[socket.socket] = []

    class Busy:
        """As in a process where NCCL connects meanwhile."""

        @staticmethod
        def create_device(hostname: str, lazy_init: bool) -> Any:
            if len(opened) < 2:
                opened.append(socket.create_server((hostname, 0)))
            return ProcessGroupGloo.create_device(hostname=hostname, lazy_init=lazy_init)

    monkeypatch.setattr(group, "ProcessGroupGloo", Busy)
    device, found = group._listening_device("127.0.0.1")
    assert device is not None
    assert found in sockets.listeners()
    assert found not in [each.getsockname() for each in opened]
    for each in opened:
        each.close()
