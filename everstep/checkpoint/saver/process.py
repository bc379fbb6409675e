"""The saver's process: holds the memory of a node's workers and writes it to storage, whoever dies.

It is the agent's, but outlives it: when the agent is gone, in good order or by kill -9, it writes what was not written
yet, and ends. One thread hears everybody and owns all that is known; each write has a thread of its own, which reads
the slot and nothing else. A worker's end is seen by its process, not by its connection, which its children may hold
too. Knows nothing of torch."""

from __future__ import annotations

import logging
import mmap
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from everstep.checkpoint import state_block
from everstep.checkpoint.image_description import unpack
from everstep.checkpoint.memory_blocks import shared_file
from everstep.checkpoint.saver.messages import (
    KINDS,
    ArenaOpened,
    AskHeld,
    Forget,
    Held,
    Message,
    OpenArena,
    Said,
    SlotWritten,
    WriteSlot,
)
from everstep.checkpoint.writer import Stored, clear_away, store
from everstep.errors import CheckpointBroken, EverstepError
from everstep.events import emit
from everstep.ipc.local_socket import peer_process, peer_user, receive_packet, send_packet
from everstep.storage.base import Storage, open_storage

log = logging.getLogger("everstep")

NUM_SLOTS = 2
_NICENESS = 10  # training comes first
_ORPHAN_PARTS_S = 20.0  # so long a share whose worker has died waits for those of the others


@dataclass(kw_only=True, eq=False)
class _WorkerMemory:
    uri: str
    place: str
    files: list[int]
    views: list[memoryview] = field(default_factory=lambda: [memoryview(b"")] * NUM_SLOTS)  # of their memory, kept: …
    line: socket.socket | None  # of the worker that has it; None: it has died
    durable: int = 0  # the newest state that is on storage
    writing: dict[int, int] = field(default_factory=dict)  # slot: sequence
    orphaned_at: float = 0.0
    world: int = 0  # the newest generation of workers that a state of it is of
    turn: threading.Lock = field(default_factory=threading.Lock)  # its states are written one after the other …
    storage: Storage | None = None  # … to a storage that remembers whether its folder was there

    def states(self) -> dict[int, state_block.State]:
        """The whole states, by slot."""
        found = {}
        for index in range(len(self.files)):
            if (state := state_block.read(self.view(index))) is not None:
                found[index] = state
        return found

    def view(self, index: int) -> memoryview:
        """… finding all its pages anew takes as long as half of the writing."""
        size = os.fstat(self.files[index]).st_size
        if len(self.views[index]) < size:
            self.views[index] = memoryview(mmap.mmap(self.files[index], size))
        return self.views[index]


@dataclass(kw_only=True, eq=False)
class _SavingWorker:
    line: socket.socket
    process: int  # pidfd
    arenas: list[_WorkerMemory] = field(default_factory=list)


class Keeper:
    def __init__(self, listener: socket.socket, agent: socket.socket) -> None:
        self._listener, self._agent = listener, agent
        self._selector = selectors.DefaultSelector()
        self._arenas: list[_WorkerMemory] = []
        self._workers: list[_SavingWorker] = []
        self._asked: list[tuple[_SavingWorker, AskHeld]] = []  # who waits until nothing is being written
        self._num_writers = 0  # threads
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_ending = False
        listener.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ, self._empty_inbox)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(agent, selectors.EVENT_READ, self._end)

    def serve(self) -> None:
        """Until the agent is gone, its workers are, and all is written."""
        while not (self._is_ending and not self._workers and not self._num_writers):
            for key, _ in self._selector.select():
                if key.fd in self._selector.get_map():  # what one act closes may have been next
                    key.data()

    # --- who comes and goes ---------------------------------------------------------------------------

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
        except OSError:  # another user's, or one that has died already
            line.close()
            return
        worker = _SavingWorker(line=line, process=process)
        self._workers.append(worker)
        self._selector.register(line, selectors.EVENT_READ, lambda: self._hear(worker))
        self._selector.register(process, selectors.EVENT_READ, lambda: self._bury(worker))

    def _end(self) -> None:
        self._selector.unregister(self._agent)
        self._selector.unregister(self._listener)
        self._listener.close()
        self._is_ending = True
        for arena in self._arenas:
            if arena.line is None:  # what failed before may succeed now
                self._write_out(arena)

    def _bury(self, worker: _SavingWorker) -> None:
        self._selector.unregister(worker.line)
        self._selector.unregister(worker.process)
        os.close(worker.process)
        worker.line.close()
        self._workers.remove(worker)
        self._asked = [(who, asked) for who, asked in self._asked if who is not worker]
        for arena in worker.arenas:
            arena.line, arena.orphaned_at = None, time.monotonic()
            self._write_out(arena)

    # --- what they say --------------------------------------------------------------------------------

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
        if isinstance(message, OpenArena):
            self._open_arena(worker, message)
        elif isinstance(message, WriteSlot):
            arena = worker.arenas[0] if worker.arenas else None
            if arena is not None and 0 <= message.index < len(arena.files):
                self._write(arena, message.index, message.sequence)
        elif isinstance(message, AskHeld):
            self._asked.append((worker, message))
            self._answer()
        elif isinstance(message, Forget):
            self._forget(message)

    def _open_arena(self, worker: _SavingWorker, wish: OpenArena) -> None:
        """The one that a dead worker of this place has left, else any that one has left, else a new one."""
        left = [arena for arena in self._arenas if arena.line is None and arena.uri == wish.uri]
        left.sort(key=lambda arena: arena.place != wish.place)
        if left:
            arena = left[0]
            arena.line = worker.line
        else:
            files = [shared_file() for _ in range(NUM_SLOTS)]
            arena = _WorkerMemory(uri=wish.uri, place=wish.place, files=files, line=worker.line)
            self._arenas.append(arena)
        arena.place = wish.place
        worker.arenas.append(arena)
        self._tell(worker.line, ArenaOpened(busy=list(arena.writing)), arena.files)

    def _answer(self) -> None:
        for worker, asked in list(self._asked):
            if asked.is_patient and any(arena.writing for arena in self._arenas if arena.uri == asked.uri):
                continue
            self._asked.remove((worker, asked))
            for arena in self._arenas:
                if arena.uri == asked.uri:
                    for index, state in arena.states().items():
                        self._tell(worker.line, Held(sequence=state.sequence), [arena.files[index]])
            self._tell(worker.line, Held(is_last=True))

    def _forget(self, wish: Forget) -> None:
        for arena in self._arenas:
            if arena.uri == wish.uri:
                for index, state in arena.states().items():
                    is_meant = wish.step is None or wish.step == state.step
                    if is_meant and index not in arena.writing:
                        state_block.clear(arena.view(index))

    def _tell(self, line: socket.socket | None, message: Message, files: list[int] | None = None) -> None:
        if line is None:
            return
        try:
            send_packet(line, message, files or [])
        except OSError:  # it has died; that is seen elsewhere
            pass

    # --- writing --------------------------------------------------------------------------------------

    def _write_out(self, arena: _WorkerMemory) -> None:
        """All whole states of a dead worker that are newer than what is on storage: other workers' shares of the newest
        may be missing, those of the one before are there."""
        states = arena.states()
        newest = max((state.sequence for state in states.values()), default=0)
        for index, state in states.items():
            is_news = state.sequence > arena.durable and index not in arena.writing
            if is_news and (state.sequence == newest or _is_share(state)):
                self._say(f"the state of step {state.step} is in memory only and is written to {arena.uri}")
                self._write(arena, index, state.sequence)

    def _write(self, arena: _WorkerMemory, index: int, sequence: int) -> None:
        self._num_writers += 1
        arena.writing[index] = sequence
        arena.world = max(arena.world, _world(arena.view(index)))
        thread = threading.Thread(
            target=self._write_slot, args=(arena, index, sequence), name=f"write {index}", daemon=True
        )
        thread.start()

    def _write_slot(self, arena: _WorkerMemory, index: int, sequence: int) -> None:
        """In a thread of its own. It is told as soon as it is durable; old ones are cleared away after that."""
        with arena.turn:
            stored, outcome = _write_slot(arena, index, sequence)
            self._call(lambda: self._note(arena, outcome))
            if stored is not None and arena.storage is not None:
                clear_away(arena.storage, stored)
        self._call(self._end_writer)

    def _call(self, action: Callable[[], None]) -> None:
        """In the thread that owns all that is known."""
        self._inbox.append(action)
        os.eventfd_write(self._wake, 1)

    def _end_writer(self) -> None:
        self._num_writers -= 1

    def _note(self, arena: _WorkerMemory, outcome: SlotWritten) -> None:
        arena.writing.pop(outcome.index, None)
        if not outcome.problem:
            arena.durable = max(arena.durable, outcome.sequence)
        facts = {"uri": arena.uri, "step": outcome.step, "is_orphan": arena.line is None}
        if outcome.problem:
            emit("saver.failed", **facts, reason=outcome.problem)
        else:
            emit("saver.wrote", **facts, size_bytes=outcome.size_bytes)
        if arena.line is None and outcome.problem:
            self._say(outcome.problem)
        elif arena.line is None:
            self._say(f"written: {outcome.size_bytes / 1e6:.0f} MB in {outcome.seconds:.1f} s")
        self._tell(arena.line, outcome)
        self._answer()

    def _empty_inbox(self) -> None:
        os.eventfd_read(self._wake)
        while self._inbox:
            self._inbox.popleft()()

    def _say(self, text: str) -> None:
        self._tell(self._agent, Said(text=text))


def _write_slot(arena: _WorkerMemory, index: int, sequence: int) -> tuple[Stored | None, SlotWritten]:
    """Write the state with this number that the slot holds; with what is told of it. Raises nothing."""
    try:
        stored = _store_slot(arena, index, sequence)
    except EverstepError as error:
        cause = str(getattr(error, "kind", ""))
        return None, SlotWritten(
            index=index, sequence=sequence, problem=error.message, hint=error.hint or "", cause=cause
        )
    except Exception as error:
        log.exception("a write failed")
        return None, SlotWritten(index=index, sequence=sequence, problem=repr(error), cause=type(error).__name__)
    size_bytes, seconds = stored.written.size_bytes, stored.written.seconds
    return stored, SlotWritten(index=index, sequence=sequence, step=stored.step, size_bytes=size_bytes, seconds=seconds)


def _store_slot(arena: _WorkerMemory, index: int, sequence: int) -> Stored:
    view = arena.view(index)
    state = state_block.read(view)
    if state is None or state.sequence != sequence:
        raise EverstepError(f"state {sequence} is not whole in memory")
    what = unpack(state.description)
    arena.storage = arena.storage or open_storage(arena.uri)
    return store(
        arena.storage,
        what.layout,
        state.image(view),
        what.manifest,
        is_abandoned=lambda: _has_waited_enough(arena) or arena.world > what.manifest.world_generation,
    )


def _world(view: memoryview) -> int:
    """Shares of a world that another one has followed will not come any more."""
    state = state_block.read(view)
    try:
        return unpack(state.description).manifest.world_generation if state is not None else 0
    except CheckpointBroken:
        return 0


def _is_share(state: state_block.State) -> bool:
    try:
        return unpack(state.description).layout.share.size > 1
    except CheckpointBroken:
        return False


def _has_waited_enough(arena: _WorkerMemory) -> bool:
    return arena.line is None and time.monotonic() - arena.orphaned_at > _ORPHAN_PARTS_S


def main() -> None:
    """With the descriptors of the listening socket and of the agent's line as arguments."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # its agent decides when it ends
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    listener, agent = (socket.socket(fileno=int(each)) for each in sys.argv[1:3])
    Keeper(listener, agent).serve()
