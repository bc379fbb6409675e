"""A worker's connection to its node's saver, for the states of one storage.

A thread receives the saver's messages and reports each finished write to its caller at once. If the saver is killed,
all waiting writes are reported as failed, and its memory still belongs to this worker. Knows nothing of torch."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from everstep.checkpoint.saver.held_states import HeldFile
from everstep.checkpoint.saver.messages import (
    KINDS,
    AskHeld,
    BuffersOpened,
    BufferWritten,
    Forget,
    Held,
    Message,
    OpenBuffers,
    WriteBuffer,
)
from everstep.errors import TemporaryError
from everstep.ipc.local_socket import connect, receive_packet, send_packet

ANSWER_S = 30.0  # its process may have to be started first, on a busy machine
GONE = "the saver has ended"

Tell = Callable[[BufferWritten], None]


class SaverGone(TemporaryError):
    """The saver has ended or does not answer: write in this process."""


class SaverConnection:
    """Requests that have an answer come from one thread at a time."""

    def __init__(self, path: Path, on_free: Callable[[int], None] = lambda index: None) -> None:
        """`on_free` gets the buffers whose writes, for a worker that has died, have ended."""
        try:
            self._line = connect(path)
        except OSError as problem:
            raise SaverGone(f"no saver at {path}: {problem}", code="saver-missing") from None
        self._on_free = on_free
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._waiting: dict[tuple[int, int], Tell] = {}
        self._answers: queue.SimpleQueue[tuple[Message, list[int]] | None] = queue.SimpleQueue()
        self._is_gone = False
        self._thread = threading.Thread(target=self._listen, name="everstep saver", daemon=True)
        self._thread.start()

    @property
    def is_gone(self) -> bool:
        """Also in a fork of the process that made the connection."""
        return self._is_gone or os.getpid() != self._pid

    def open_buffers(self, uri: str, place: str, owner: str) -> tuple[list[int], list[int]]:
        """The files of the buffers, and which of them are still being written."""
        with self._asking:
            self._send(OpenBuffers(uri=uri, place=place, owner=owner))
            message, files = self._next_answer()
        assert isinstance(message, BuffersOpened)
        return files, message.busy

    def held(self, uri: str, *, is_patient: bool = False) -> list[HeldFile]:
        """Files of all buffers with a whole state of this storage; the caller closes them."""
        found: list[HeldFile] = []
        with self._asking:
            self._send(AskHeld(uri=uri, is_patient=is_patient))
            while True:
                message, files = self._next_answer(None if is_patient else ANSWER_S)
                assert isinstance(message, Held)
                found += [HeldFile(descriptor=file, is_written=message.is_written) for file in files]
                if message.is_last:
                    return found

    def write(self, index: int, sequence: int, tell: Tell) -> None:
        """Write the buffer. `tell` is called once, from the listening thread."""
        with self._lock:
            self._waiting[index, sequence] = tell
        try:
            self._send(WriteBuffer(index=index, sequence=sequence))
        except SaverGone:
            self._tell_gone()

    def forget(self, uri: str, step: int | None) -> None:
        self._send(Forget(uri=uri, step=step))

    def close(self) -> None:
        try:
            self._line.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        if os.getpid() == self._pid:
            self._thread.join()
        self._line.close()

    def _send(self, message: Message) -> None:
        if self.is_gone:
            raise SaverGone(GONE, code="saver-gone-before-request")
        try:
            send_packet(self._line, message)
        except OSError as problem:
            raise SaverGone(f"{GONE}: {problem}", code="saver-gone-during-request") from None

    def _next_answer(self, timeout_s: float | None = ANSWER_S) -> tuple[Message, list[int]]:
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise SaverGone(f"the saver did not answer within {ANSWER_S:.0f} s", code="saver-silent") from None
        if answer is None:
            self._answers.put(None)
            raise SaverGone(GONE, code="saver-gone-before-answer")
        return answer

    def _listen(self) -> None:
        while True:
            try:
                received = receive_packet(self._line, KINDS)
            except (EOFError, OSError, ValueError):
                break
            assert received is not None
            message, files = received
            if isinstance(message, BufferWritten):
                self._hand_over(message)
            else:
                self._answers.put((message, files))
        self._is_gone = True
        self._answers.put(None)
        self._tell_gone()

    def _hand_over(self, written: BufferWritten) -> None:
        with self._lock:
            tell = self._waiting.pop((written.index, written.sequence), None)
        if tell is not None:
            tell(written)
        else:
            self._on_free(written.index)

    def _tell_gone(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for (index, sequence), tell in waiting.items():
            tell(BufferWritten(index=index, sequence=sequence, problem=GONE, cause="SaverGone"))
