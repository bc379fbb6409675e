"""The agent's side of `everstep.once_per_node`: keeps what one worker has loaded for all others of its node.

Of the workers that ask for the same data, the first loads it, and the others wait. If it dies or fails, the next one
loads. Data that no worker uses any more is freed soon, or at once when other data is loaded. It is in anonymous
memory: whatever happens to this process, nothing is left of it when the last worker is gone."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from everstep.events import emit
from everstep.ipc.event_loop import EventLoop
from everstep.ipc.local_socket import listen, peer_process, peer_user, receive_packet, send_packet
from everstep.ipc.node_data_messages import KINDS, AskData, DataLoaded, LoadData, NotLoaded

IDLE_S = 60.0  # the next trial of the same code often comes at once


@dataclass(kw_only=True, slots=True, eq=False)
class _Data:
    file: int | None = None  # None: it is being loaded
    loader: socket.socket | None = None
    waiting: list[socket.socket] = field(default_factory=list)
    users: set[socket.socket] = field(default_factory=set)
    num_uses: int = 0  # tells whether it was used since

    @property
    def is_idle(self) -> bool:
        return not (self.users or self.waiting or self.loader)


class NodeData:
    """Used from the agent's thread alone: `open`, then `close`."""

    def __init__(self, path: Path, loop: EventLoop, say: Callable[[str], None]) -> None:
        self._path, self._loop, self._say = path, loop, say
        self._listener: socket.socket | None = None
        self._workers: dict[socket.socket, int] = {}  # their processes (pidfd), by the line to them
        self._data: dict[str, _Data] = {}

    @property
    def path(self) -> Path | None:
        """Where workers find it; None: it could not be opened."""
        return self._path if self._listener is not None else None

    def open(self) -> None:
        try:
            self._listener = listen(self._path)
        except OSError as problem:
            self._say(f"workers load data for themselves: {problem}")
            return
        self._listener.setblocking(False)
        self._loop.watch(self._listener, self._accept)

    def close(self) -> None:
        if self._listener is None:
            return
        self._loop.forget(self._listener)
        self._listener.close()
        self._listener = None
        self._path.unlink(missing_ok=True)
        for line in list(self._workers):
            self._bury(line)
        for key in list(self._data):
            self._free(key)

    # --- workers ------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            line, _ = self._listener.accept()
        except BlockingIOError:
            return
        line.setblocking(True)
        try:
            if peer_user(line) != os.geteuid():
                raise PermissionError
            process = os.pidfd_open(peer_process(line))
        except OSError:  # another user's, or a worker that has died already
            line.close()
            return
        self._workers[line] = process
        self._loop.watch(line, lambda: self._hear(line))
        # By its process: children of a worker may hold its line too.
        self._loop.watch(process, lambda: self._bury(line))

    def _hear(self, line: socket.socket) -> None:
        try:
            received = receive_packet(line, KINDS, 0.0)
        except (EOFError, ValueError, KeyError, TypeError):
            self._bury(line)
            return
        if received is not None:
            self._do(line, *received)

    def _do(self, line: socket.socket, message: Any, files: list[int]) -> None:
        if isinstance(message, AskData):
            self._ask(line, message.key)
        elif isinstance(message, DataLoaded | NotLoaded):
            data = self._data.get(message.key)
            if data is not None and data.loader is line:
                self._note_loaded(message.key, data, files.pop() if files else None)
        for file in files:
            os.close(file)

    def _bury(self, line: socket.socket) -> None:
        process = self._workers.pop(line)
        self._loop.forget(line)
        self._loop.forget(process)
        os.close(process)
        for key, data in list(self._data.items()):
            if line in data.waiting:
                data.waiting.remove(line)
            if data.loader is line:
                self._note_loaded(key, data, None)
            elif line in data.users:
                data.users.remove(line)
                self._look_idle(key, data)
        line.close()

    # --- data ---------------------------------------------------------------------------------------

    def _ask(self, line: socket.socket, key: str) -> None:
        data = self._data.setdefault(key, _Data())
        data.num_uses += 1
        data.waiting.append(line)
        self._serve(key, data)

    def _serve(self, key: str, data: _Data) -> None:
        if data.file is None and data.loader is None and data.waiting:
            self._free_idle()
            data.loader = data.waiting.pop(0)
            self._tell(data.loader, LoadData(key=key))
        elif data.file is not None:
            waiting, data.waiting = data.waiting, []
            for line in waiting:
                data.users.add(line)
                self._tell(line, DataLoaded(key=key), [data.file])

    def _note_loaded(self, key: str, data: _Data, file: int | None) -> None:
        loader, data.loader = data.loader, None
        if file is not None and loader is not None:
            data.file = file
            data.users.add(loader)
        self._serve(key, data)
        self._look_idle(key, data)

    def _look_idle(self, key: str, data: _Data) -> None:
        if not data.is_idle or self._data.get(key) is not data:
            return
        if data.file is None:
            del self._data[key]
            return
        self._loop.after(IDLE_S, partial(self._free_unused, key, data, data.num_uses))

    def _free_unused(self, key: str, data: _Data, num_uses: int) -> None:
        if self._data.get(key) is data and data.is_idle and data.num_uses == num_uses:
            self._free(key)

    def _free_idle(self) -> None:
        for key, data in list(self._data.items()):
            if data.is_idle:
                self._free(key)

    def _free(self, key: str) -> None:
        data = self._data.pop(key)
        if data.file is not None:
            emit("data.freed", size_bytes=os.fstat(data.file).st_size)
            os.close(data.file)

    def _tell(self, line: socket.socket, message: Any, files: list[int] | None = None) -> None:
        try:
            send_packet(line, message, files or [])
        except OSError:  # it has died, which its pidfd reports
            pass
