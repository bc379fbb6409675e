"""One place to wait."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from everstep.launcher.event_loop import EventLoop


class Pipe:
    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def fileno(self) -> int:
        return self.reader


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.reader)
    os.close(pipe.writer)


def test_what_other_threads_post_is_done_in_the_turning_thread() -> None:
    loop, done_in = EventLoop(), list[int]()
    poster = threading.Thread(target=lambda: loop.post(lambda: done_in.append(threading.get_ident())))
    poster.start()
    while not done_in:
        loop.turn()
    poster.join()
    assert done_in == [threading.get_ident()]


def test_deadlines_come_in_order() -> None:
    loop, done = EventLoop(), list[str]()
    loop.after(0.02, lambda: done.append("second"))
    loop.after(0.0, lambda: done.append("first"))
    while len(done) < 2:
        loop.turn()
    assert done == ["first", "second"]


def test_a_descriptor_is_watched_until_forgotten(pipe: Pipe) -> None:
    loop, seen = EventLoop(), list[bytes]()
    loop.watch(pipe, lambda: seen.append(os.read(pipe.reader, 10)))
    os.write(pipe.writer, b"x")
    loop.turn()
    assert seen == [b"x"]
    loop.forget(pipe)
    os.write(pipe.writer, b"y")
    loop.after(0.0, lambda: None)
    loop.turn()
    assert seen == [b"x"]
