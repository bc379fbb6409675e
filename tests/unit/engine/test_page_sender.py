"""Memory is sent as it is, by reference where the system can."""

from __future__ import annotations

import ctypes
import errno
import socket
import threading
from collections.abc import Callable

import pytest

from everstep.engine import page_sender
from everstep.engine.page_sender import PageSender

CONTENT = bytearray(n * n % 251 for n in range(3_000_001))


def transmit(send: Callable[[PageSender], None]) -> bytes:
    with socket.create_server(("127.0.0.1", 0)) as inlet:
        near = socket.create_connection(inlet.getsockname())
        far, _ = inlet.accept()
    arrived = bytearray()

    def receive() -> None:
        while part := far.recv(1 << 20):
            arrived.extend(part)

    thread = threading.Thread(target=receive)
    thread.start()
    with near, PageSender(near) as pages:
        send(pages)
        near.shutdown(socket.SHUT_WR)
        thread.join()
    far.close()
    return bytes(arrived)


def test_memory_arrives_as_it_is_wherever_it_begins() -> None:
    def send(pages: PageSender) -> None:
        for start, end in ((0, 5), (5, 5), (5, 2_000_003), (2_000_003, len(CONTENT))):
            pages.send(memoryview(CONTENT)[start:end])

    assert transmit(send) == bytes(CONTENT)


@pytest.mark.parametrize("reason", [errno.ENOSYS, errno.EPERM])
def test_memory_is_copied_where_references_are_not_allowed(monkeypatch: pytest.MonkeyPatch, reason: int) -> None:
    class Refusing:
        def vmsplice(self, *_: object) -> int:
            ctypes.set_errno(reason)
            return -1

    monkeypatch.setattr(page_sender, "_libc", Refusing())
    assert transmit(lambda pages: pages.send(memoryview(CONTENT))) == bytes(CONTENT)


def test_a_connection_that_has_ended_is_an_error() -> None:
    near, far = socket.socketpair()
    far.close()
    with near, PageSender(near) as pages, pytest.raises(BrokenPipeError):
        pages.send(memoryview(CONTENT))
