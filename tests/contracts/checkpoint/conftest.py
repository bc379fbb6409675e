"""Storages as users have them: a directory, fsspec's memory, and S3 by moto's server in a process of its own."""

from __future__ import annotations

import socket
import struct
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from everstep.storage.base import Storage, open_storage
from lab.s3 import is_installed, new_bucket, serving_s3, variables


@pytest.fixture(scope="session", autouse=True)  # before what a test leaves behind is looked at
def moto_port() -> Iterator[int | None]:
    """None where it is not installed."""
    if not is_installed():
        yield None
        return
    import fsspec.asyn

    loop = fsspec.asyn.get_loop()  # its threads stay for the life of the process
    loop.set_default_executor(ThreadPoolExecutor(1))
    fsspec.asyn.sync(loop, lambda: loop.run_in_executor(None, int))
    with serving_s3() as port:
        yield port


@pytest.fixture
def bucket(moto_port: int | None, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket; its name."""
    if moto_port is None:
        pytest.skip("needs moto and s3fs")
    given = variables(f"http://127.0.0.1:{moto_port}")
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return new_bucket(given)


@pytest.fixture(params=["local", "memory", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return f"s3://{request.getfixturevalue('bucket')}/some/run"
    return str(tmp_path / "ckpt") if request.param == "local" else f"memory://{uuid.uuid4()}/run"


@pytest.fixture
def storage(uri: str) -> Iterator[Storage]:
    with closing(open_storage(uri)) as each:
        yield each


class Gateway:
    """A TCP relay to S3 that can be down: then connections are cut as soon as they are made."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.is_down = threading.Event()
        self.num_refused = 0
        self.cut_after: int | None = None  # bytes from the client, once
        self.freeze_after: int | None = None  # the same; then nothing is heard of that connection, until …
        self.may_thaw = threading.Event()  # … this, which ends it
        self._refused = threading.Condition()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        self._sockets: list[socket.socket] = []

    def wait_refused(self, count: int) -> None:
        with self._refused:
            assert self._refused.wait_for(lambda: self.num_refused >= count, 60)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.is_down.is_set():
                client.close()
                self._count()
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, server]
            for one, other, is_up in ((client, server, True), (server, client, False)):
                thread = threading.Thread(target=self._relay, args=(one, other, is_up))
                self._threads.append(thread)
                thread.start()

    def _relay(self, source: socket.socket, target: socket.socket, is_up: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if is_up and self.cut_after is not None:
                    self.cut_after -= len(data)
                    if self.cut_after < 0:
                        self.cut_after = None
                        self._count()
                        _reset(source)  # in the middle of a request
                        break
                if is_up and self.freeze_after is not None:
                    self.freeze_after -= len(data)
                    if self.freeze_after < 0:
                        self.freeze_after = None
                        self.may_thaw.wait(60)
                        _reset(source)
                        break
                target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _count(self) -> None:
        with self._refused:
            self.num_refused += 1
            self._refused.notify_all()

    def close(self) -> None:
        self.may_thaw.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join(10)
        for each in self._sockets:
            each.close()


def _reset(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()


@pytest.fixture
def gateway(moto_port: int, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    with closing(Gateway(moto_port)) as each:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{each.port}")
        yield each
