"""The saver's process: holds the memory of a node's workers and writes it to storage, whichever process dies.

The agent starts it, but it outlives the agent: when that has ended, in good order or by kill -9, it writes all states
that are not on storage yet, and ends. One thread receives all messages and owns all data; each write has its own
thread, which reads only its buffer. A worker's end is seen by its process, not by its connection, which its children
may hold too. Knows nothing of torch."""

from __future__ import annotations

import logging
import mmap
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from everstep.checkpoint import state_block
from everstep.checkpoint.image import unpack
from everstep.checkpoint.memory import shared_file
from everstep.checkpoint.saver.messages import (
    KINDS,
    AskHeld,
    BuffersOpened,
    BufferWritten,
    Forget,
    Held,
    Message,
    OpenBuffers,
    Said,
    WriteBuffer,
)
from everstep.checkpoint.write import Stored, clear_away, store
from everstep.errors import CheckpointBroken, EverstepError
from everstep.events import emit
from everstep.ipc.event_loop import EventLoop
from everstep.ipc.local_socket import peer_process, peer_user, receive_packet, send_packet
from everstep.storage.base import Storage, open_storage

log = logging.getLogger("everstep")

NUM_BUFFERS = 2
_NICENESS = 10  # training comes first
_ORPHAN_PARTS_S = 20.0  # how long the share of a dead worker waits for the other shares


@dataclass(kw_only=True, eq=False)
class _WorkerMemory:
    uri: str
    place: str
    files: list[int]
    views: list[memoryview] = field(default_factory=lambda: [memoryview(b"")] * NUM_BUFFERS)  # of their memory, kept: …
    line: socket.socket | None  # to the worker that uses it; None: it has died
    durable: int = 0  # the newest state that is on storage
    writing: dict[int, int] = field(default_factory=dict)  # buffer: sequence
    orphaned_at: float = 0.0
    world: int = 0  # the newest generation of workers among its states
    turn: threading.Lock = field(default_factory=threading.Lock)  # its states are written one after the other …
    storage: Storage | None = None  # … to a storage that remembers whether its folder was there

    def states(self) -> dict[int, state_block.WholeState]:
        """The whole states, by buffer."""
        found = {}
        for index in range(len(self.files)):
            if (state := state_block.read(self.view(index))) is not None:
                found[index] = state
        return found

    def view(self, index: int) -> memoryview:
        """… mapping all its pages again takes half as long as the writing."""
        size = os.fstat(self.files[index]).st_size
        if len(self.views[index]) < size:
            self.views[index] = memoryview(mmap.mmap(self.files[index], size))
        return self.views[index]


@dataclass(kw_only=True, eq=False)
class _SavingWorker:
    line: socket.socket
    process: int  # pidfd
    memories: list[_WorkerMemory] = field(default_factory=list)


class SaverServer:
    def __init__(self, listener: socket.socket, agent: socket.socket) -> None:
        self._listener, self._agent = listener, agent
        self._loop = EventLoop()
        self._memories: list[_WorkerMemory] = []
        self._workers: list[_SavingWorker] = []
        self._asked: list[tuple[_SavingWorker, AskHeld]] = []  # waiting until nothing is being written
        self._num_writers = 0  # threads
        self._is_ending = False
        listener.setblocking(False)
        self._loop.watch(listener, self._accept)
        self._loop.watch(agent, self._end)

    def serve(self) -> None:
        """Until the agent and its workers have ended, and all states are written."""
        while not (self._is_ending and not self._workers and not self._num_writers):
            self._loop.turn()

    # --- workers come and go ---------------------------------------------------------------------------

    def _accept(self) -> None:
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
        worker = _SavingWorker(line=line, process=process)
        self._workers.append(worker)
        self._loop.watch(line, lambda: self._hear(worker))
        self._loop.watch(process, lambda: self._bury(worker))

    def _end(self) -> None:
        self._loop.forget(self._agent)
        self._loop.forget(self._listener)
        self._listener.close()
        self._is_ending = True
        for memory in self._memories:
            if memory.line is None:  # a write that failed before may succeed now
                self._write_out(memory)

    def _bury(self, worker: _SavingWorker) -> None:
        self._loop.forget(worker.line)
        self._loop.forget(worker.process)
        os.close(worker.process)
        worker.line.close()
        self._workers.remove(worker)
        self._asked = [(who, asked) for who, asked in self._asked if who is not worker]
        for memory in worker.memories:
            memory.line, memory.orphaned_at = None, time.monotonic()
            self._write_out(memory)

    # --- messages --------------------------------------------------------------------------------

    def _hear(self, worker: _SavingWorker) -> None:
        try:
            received = receive_packet(worker.line, KINDS, 0.0)
        except (EOFError, ValueError, KeyError, TypeError):
            self._bury(worker)
            return
        if received is not None:
            message, files = received
            for file in files:
                os.close(file)
            self._do(worker, message)

    def _do(self, worker: _SavingWorker, message: Any) -> None:
        if isinstance(message, OpenBuffers):
            self._open_buffers(worker, message)
        elif isinstance(message, WriteBuffer):
            memory = worker.memories[0] if worker.memories else None
            if memory is not None and 0 <= message.index < len(memory.files):
                self._write(memory, message.index, message.sequence)
        elif isinstance(message, AskHeld):
            self._asked.append((worker, message))
            self._answer()
        elif isinstance(message, Forget):
            self._forget(message)

    def _open_buffers(self, worker: _SavingWorker, wish: OpenBuffers) -> None:
        """The memory that a dead worker of this place has left, else of any dead worker, else new memory."""
        left = [memory for memory in self._memories if memory.line is None and memory.uri == wish.uri]
        left.sort(key=lambda memory: memory.place != wish.place)
        if left:
            memory = left[0]
            memory.line = worker.line
        else:
            files = [shared_file() for _ in range(NUM_BUFFERS)]
            memory = _WorkerMemory(uri=wish.uri, place=wish.place, files=files, line=worker.line)
            self._memories.append(memory)
        memory.place = wish.place
        worker.memories.append(memory)
        self._tell(worker.line, BuffersOpened(busy=list(memory.writing)), memory.files)

    def _answer(self) -> None:
        for worker, asked in list(self._asked):
            if asked.is_patient and any(memory.writing for memory in self._memories if memory.uri == asked.uri):
                continue
            self._asked.remove((worker, asked))
            for memory in self._memories:
                if memory.uri == asked.uri:
                    for index, state in memory.states().items():
                        self._tell(worker.line, Held(sequence=state.sequence), [memory.files[index]])
            self._tell(worker.line, Held(is_last=True))

    def _forget(self, wish: Forget) -> None:
        for memory in self._memories:
            if memory.uri == wish.uri:
                for index, state in memory.states().items():
                    is_meant = wish.step is None or wish.step == state.step
                    if is_meant and index not in memory.writing:
                        state_block.clear(memory.view(index))

    def _tell(self, line: socket.socket | None, message: Message, files: list[int] | None = None) -> None:
        if line is None:
            return
        try:
            send_packet(line, message, files or [])
        except OSError:  # it has died, which its pidfd reports
            pass

    # --- writing --------------------------------------------------------------------------------------

    def _write_out(self, memory: _WorkerMemory) -> None:
        """All whole states of a dead worker that are newer than those on storage: other workers' shares of the newest
        may be missing, those of the one before are complete."""
        states = memory.states()
        newest = max((state.sequence for state in states.values()), default=0)
        for index, state in states.items():
            is_news = state.sequence > memory.durable and index not in memory.writing
            if is_news and (state.sequence == newest or _is_share(state)):
                self._say(f"the state of step {state.step} is only in memory; writing it to {memory.uri}")
                self._write(memory, index, state.sequence)

    def _write(self, memory: _WorkerMemory, index: int, sequence: int) -> None:
        self._num_writers += 1
        memory.writing[index] = sequence
        memory.world = max(memory.world, _world(memory.view(index)))
        thread = threading.Thread(
            target=self._write_buffer, args=(memory, index, sequence), name=f"write {index}", daemon=True
        )
        thread.start()

    def _write_buffer(self, memory: _WorkerMemory, index: int, sequence: int) -> None:
        """In its own thread. It is reported as soon as it is durable; old ones are cleared away after that."""
        with memory.turn:
            stored, outcome = _write_buffer(memory, index, sequence)
            self._loop.post(lambda: self._note(memory, outcome))
            if stored is not None and memory.storage is not None:
                clear_away(memory.storage, stored)
        self._loop.post(self._end_writer)

    def _end_writer(self) -> None:
        self._num_writers -= 1

    def _note(self, memory: _WorkerMemory, outcome: BufferWritten) -> None:
        memory.writing.pop(outcome.index, None)
        if not outcome.problem:
            memory.durable = max(memory.durable, outcome.sequence)
        facts = {"uri": memory.uri, "step": outcome.step, "is_orphan": memory.line is None}
        if outcome.problem:
            emit("saver.failed", **facts, reason=outcome.problem)
        else:
            emit("saver.wrote", **facts, size_bytes=outcome.size_bytes)
        if memory.line is None and outcome.problem:
            self._say(outcome.problem)
        elif memory.line is None:
            self._say(f"written: {outcome.size_bytes / 1e6:.0f} MB in {outcome.seconds:.1f} s")
        self._tell(memory.line, outcome)
        self._answer()

    def _say(self, text: str) -> None:
        self._tell(self._agent, Said(text=text))


def _write_buffer(memory: _WorkerMemory, index: int, sequence: int) -> tuple[Stored | None, BufferWritten]:
    """Write the state with this number from the buffer; also the report. Raises nothing."""
    try:
        stored = _store_buffer(memory, index, sequence)
    except EverstepError as error:
        cause = str(getattr(error, "kind", ""))
        return None, BufferWritten(
            index=index, sequence=sequence, problem=error.message, hint=error.hint or "", cause=cause
        )
    except Exception as error:
        log.exception("a write failed")
        return None, BufferWritten(index=index, sequence=sequence, problem=repr(error), cause=type(error).__name__)
    size_bytes, seconds = stored.written.size_bytes, stored.written.seconds
    return stored, BufferWritten(
        index=index, sequence=sequence, step=stored.step, size_bytes=size_bytes, seconds=seconds
    )


def _store_buffer(memory: _WorkerMemory, index: int, sequence: int) -> Stored:
    view = memory.view(index)
    state = state_block.read(view)
    if state is None or state.sequence != sequence:
        raise EverstepError(f"state {sequence} is not whole in memory", code="state-not-whole")
    what = unpack(state.description)
    memory.storage = memory.storage or open_storage(memory.uri)
    return store(
        memory.storage,
        what.layout,
        state.image(view),
        what.manifest,
        is_abandoned=lambda: _has_waited_enough(memory) or memory.world > what.manifest.world_generation,
    )


def _world(view: memoryview) -> int:
    """The generation of its workers: once a newer one has followed, missing shares never come."""
    state = state_block.read(view)
    try:
        return unpack(state.description).manifest.world_generation if state is not None else 0
    except CheckpointBroken:
        return 0


def _is_share(state: state_block.WholeState) -> bool:
    try:
        return unpack(state.description).layout.share.size > 1
    except CheckpointBroken:
        return False


def _has_waited_enough(memory: _WorkerMemory) -> bool:
    return memory.line is None and time.monotonic() - memory.orphaned_at > _ORPHAN_PARTS_S


def main() -> None:
    """With the descriptors of the listening socket and of the agent's line as arguments."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the agent decides when it ends
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    listener, agent = (socket.socket(fileno=int(each)) for each in sys.argv[1:3])
    SaverServer(listener, agent).serve()
