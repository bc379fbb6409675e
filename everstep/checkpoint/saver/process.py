"""The saver's process: holds the memory of a node's workers and writes it to storage, whichever process dies.

The agent starts it, but it outlives the agent: when that has ended, in good order or by kill -9, it writes all states
that are not on storage yet, and ends. One thread receives all messages and owns all data; each write has its own
thread, which reads only its buffer. A worker's end is seen by its process, not by its connection, which its children
may hold too.

The saver of a pool's node serves many trials, and holds the last states of those that have ended there, up to a bound:
a trial that continues on the node loads from memory. Knows nothing of torch."""

from __future__ import annotations

import logging
import mmap
import os
import select
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from everstep.checkpoint import state_block
from everstep.checkpoint.image import Description, unpack
from everstep.checkpoint.memory import shared_file
from everstep.checkpoint.saver.left_states import LeftMemory, decide_drops
from everstep.checkpoint.saver.messages import (
    KINDS,
    AllWritten,
    AskHeld,
    AskWritten,
    BuffersOpened,
    BufferWritten,
    DropStates,
    Forget,
    Held,
    Message,
    OpenBuffers,
    Said,
    WriteBuffer,
)
from everstep.checkpoint.write import Written, clear_away, write_image
from everstep.errors import CheckpointBroken, EverstepError
from everstep.events import emit
from everstep.ipc.event_loop import EventLoop
from everstep.ipc.local_socket import peer_process, peer_user, receive_packet, send_packet
from everstep.storage.base import Storage, open_storage

log = logging.getLogger("everstep")

NUM_BUFFERS = 2
_NICENESS = 10  # training comes first
_REMOVE = 9  # of madvise: of the file, not of the mapping alone
_ORPHAN_PARTS_S = 20.0  # how long the share of a dead worker waits for the other shares


@dataclass(kw_only=True, eq=False)
class _WorkerMemory:
    uri: str
    files: list[int]
    owner: str = ""
    place: str = ""  # of the worker that uses it, or used it last
    views: list[memoryview] = field(default_factory=lambda: [memoryview(b"")] * NUM_BUFFERS)  # of their memory, kept: …
    line: socket.socket | None = None  # to the worker that uses it; None: it has died
    durable: int = 0  # the newest state that is on storage
    writing: dict[int, int] = field(default_factory=dict)  # buffer: sequence
    orphaned_at: float = 0.0
    problem: str = ""  # of the last write
    is_over: bool = False  # its owner will not come back
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

    @property
    def has_waited_enough(self) -> bool:
        return self.line is None and time.monotonic() - self.orphaned_at > _ORPHAN_PARTS_S

    def left(self) -> LeftMemory:
        """What is known of the memory of a dead worker."""
        newest = max((state.sequence for state in self.states().values()), default=0)
        return LeftMemory(
            size_bytes=sum(os.fstat(file).st_blocks * 512 for file in self.files),
            left_at=self.orphaned_at,
            is_written=newest <= self.durable,
            is_writing=bool(self.writing),
            is_over=self.is_over,
        )

    def keep_newest(self) -> None:
        """Free the pages of all other states, once the newest is on storage."""
        states = self.states()
        newest = max(states, key=lambda index: states[index].sequence, default=None)
        for index in range(len(self.files)):
            if index != newest and len(view := self.view(index)) and os.fstat(self.files[index]).st_blocks:
                assert isinstance(view.obj, mmap.mmap)
                view.obj.madvise(_REMOVE)

    def close(self) -> None:
        self.views = []
        while self.files:
            os.close(self.files.pop())

    def view(self, index: int) -> memoryview:
        """… mapping all its pages again takes half as long as the writing."""
        size = os.fstat(self.files[index]).st_size
        if len(self.views[index]) < size:
            self.views[index] = memoryview(mmap.mmap(self.files[index], size))
        return self.views[index]


@dataclass(kw_only=True, slots=True, eq=False)
class _SaverUser:
    """A worker, or the agent of some."""

    process: int  # pidfd
    owner: str = ""


class SaverServer:
    def __init__(self, listener: socket.socket, agent: socket.socket, most_left_bytes: int | None = None) -> None:
        """`most_left_bytes`: of dead workers, whose owners may come back; None: all of it, until the end."""
        self._listener, self._agent, self._most_left_bytes = listener, agent, most_left_bytes
        self._loop = EventLoop()
        self._memories: list[_WorkerMemory] = []
        self._users: dict[socket.socket, _SaverUser] = {}  # by the line to them
        self._settling: list[tuple[socket.socket, AskWritten]] = []  # waiting until all is written
        self._asked: list[tuple[socket.socket, AskHeld]] = []  # waiting until nothing is being written
        self._num_writers = 0  # threads
        self._is_ending = False
        listener.setblocking(False)
        self._loop.watch(listener, self._accept)
        self._loop.watch(agent, self._hear_agent)

    def serve(self) -> None:
        """Until the agent and its workers have ended, and all states are written."""
        while not (self._is_ending and not self._users and not self._num_writers):
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
        self._users[line] = _SaverUser(process=process)
        self._loop.watch(line, lambda: self._hear(line))
        self._loop.watch(process, lambda: self._bury(line))

    def _hear_agent(self) -> None:
        try:
            received = receive_packet(self._agent, KINDS, 0.0)
        except (EOFError, ValueError, KeyError, TypeError):
            self._end()
            return
        if received is not None and isinstance(drop := received[0], DropStates):
            for memory in [each for each in self._memories if each.owner == drop.owner]:
                memory.is_over = True
            self._drop()

    def _end(self) -> None:
        self._loop.forget(self._agent)
        self._loop.forget(self._listener)
        self._listener.close()
        self._is_ending = True
        for memory in self._memories:
            if memory.line is None:  # a write that failed before may succeed now
                self._write_out(memory)

    def _bury(self, line: socket.socket) -> None:
        process = self._users.pop(line).process
        self._loop.forget(line)
        self._loop.forget(process)
        os.close(process)
        line.close()
        self._asked = [(who, asked) for who, asked in self._asked if who is not line]
        self._settling = [(who, asked) for who, asked in self._settling if who is not line]
        for memory in self._memories:
            if memory.line is line:
                memory.line, memory.orphaned_at = None, time.monotonic()
                self._write_out(memory)
        self._drop()

    # --- messages --------------------------------------------------------------------------------

    def _hear(self, line: socket.socket) -> None:
        try:
            received = receive_packet(line, KINDS, 0.0)
        except (EOFError, ValueError, KeyError, TypeError):
            self._bury(line)
            return
        if received is not None:
            message, files = received
            for file in files:
                os.close(file)
            self._do(line, message)

    def _do(self, line: socket.socket, message: Any) -> None:
        if isinstance(message, OpenBuffers):
            self._open_buffers(line, message)
        elif isinstance(message, WriteBuffer):
            for memory in self._memories:
                if memory.line is line and 0 <= message.index < len(memory.files):
                    self._write(memory, message.index, message.sequence)
        elif isinstance(message, AskHeld):
            self._asked.append((line, message))
            self._answer()
        elif isinstance(message, AskWritten):
            self._await_written(line, message)
        elif isinstance(message, Forget):
            self._forget(self._users[line].owner, message)

    def _open_buffers(self, line: socket.socket, wish: OpenBuffers) -> None:
        """The memory that a dead worker of this place has left, else of any dead worker, else new memory."""
        self._users[line].owner = wish.owner
        left = [memory for memory in self._of(wish.uri, wish.owner) if memory.line is None]
        memory = min(left, key=lambda memory: memory.place != wish.place, default=None)
        if memory is None:
            memory = _WorkerMemory(uri=wish.uri, owner=wish.owner, files=[shared_file() for _ in range(NUM_BUFFERS)])
            self._memories.append(memory)
        memory.line, memory.place, memory.is_over = line, wish.place, False
        self._tell(line, BuffersOpened(busy=list(memory.writing)), memory.files)

    def _of(self, uri: str, owner: str) -> list[_WorkerMemory]:
        return [each for each in self._memories if (each.uri, each.owner) == (uri, owner)]

    def _await_written(self, line: socket.socket, wish: AskWritten) -> None:
        """Its workers have ended, which this process may not have noticed yet."""
        ended = select.poll()
        lines = {user.process: each for each, user in self._users.items() if user.owner == wish.owner}
        for process in lines:
            ended.register(process, select.POLLIN)
        for process, _ in ended.poll(0):
            self._bury(lines[process])
        for memory in self._memories:
            if memory.owner == wish.owner and memory.line is None:  # a write that failed before may succeed now
                self._write_out(memory)
        self._settling.append((line, wish))
        self._answer()

    def _answer(self) -> None:
        for line, asked in list(self._asked):
            memories = self._of(asked.uri, self._users[line].owner)
            if asked.is_patient and any(memory.writing for memory in memories):
                continue
            self._asked.remove((line, asked))
            for memory in memories:
                for index, state in memory.states().items():
                    self._tell(line, Held(is_written=state.sequence <= memory.durable), [memory.files[index]])
            self._tell(line, Held(is_last=True))
        for line, wish in list(self._settling):
            left = [each for each in self._memories if each.owner == wish.owner and each.line is None]
            if not any(memory.writing for memory in left):
                self._settling.remove((line, wish))
                self._tell(line, AllWritten(problem=next((each.problem for each in left if each.problem), "")))

    def _forget(self, owner: str, wish: Forget) -> None:
        for memory in self._of(wish.uri, owner):
            for index, state in memory.states().items():
                is_meant = wish.step is None or wish.step == state.step
                if is_meant and index not in memory.writing:
                    state_block.clear(memory.view(index))

    def _drop(self) -> None:
        """Keep of dead workers only what their owners may need, and no more than the bound allows."""
        if self._most_left_bytes is None:
            return
        left = [each for each in self._memories if each.line is None]
        for memory in left:
            if memory.left().is_written and not memory.writing:
                memory.keep_newest()
        drops = decide_drops([each.left() for each in left], self._most_left_bytes)
        for memory, reason in ((left[index], reason) for index, reason in drops.items()):
            self._memories.remove(memory)
            memory.close()
            emit("saver.dropped", uri=memory.uri, owner=memory.owner, reason=reason)

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
            what = _unpacked(state)
            if is_news and (state.sequence == newest or (what is not None and what.share.size > 1)):
                self._say(memory, f"the state of step {state.step} is only in memory; writing it to {memory.uri}")
                self._write(memory, index, state.sequence)

    def _write(self, memory: _WorkerMemory, index: int, sequence: int) -> None:
        self._num_writers += 1
        memory.writing[index] = sequence
        if (what := _unpacked(state_block.read(memory.view(index)))) is not None:
            memory.world = max(memory.world, what.manifest.world_generation)
        arguments = (memory, index, sequence)
        threading.Thread(target=self._write_buffer, args=arguments, name=f"write {index}", daemon=True).start()

    def _write_buffer(self, memory: _WorkerMemory, index: int, sequence: int) -> None:
        """In its own thread. It is reported as soon as it is durable; old ones are cleared away after that."""
        with memory.turn:
            written, outcome = _write_state(memory, index, sequence)
            self._loop.post(lambda: self._note(memory, outcome))
            if written is not None and memory.storage is not None:
                clear_away(memory.storage, written)
        self._loop.post(self._end_writer)

    def _end_writer(self) -> None:
        self._num_writers -= 1

    def _note(self, memory: _WorkerMemory, outcome: BufferWritten) -> None:
        memory.writing.pop(outcome.index, None)
        facts = {"uri": memory.uri, "step": outcome.step, "is_orphan": memory.line is None}
        memory.problem = outcome.problem
        if outcome.problem:
            emit("saver.failed", **facts, reason=outcome.problem)
        else:
            memory.durable = max(memory.durable, outcome.sequence)
            emit("saver.wrote", **facts, size_bytes=outcome.size_bytes)
        if memory.line is None:
            written = f"written: {outcome.size_bytes / 1e6:.0f} MB in {outcome.seconds:.1f} s"
            self._say(memory, outcome.problem or written)
        self._tell(memory.line, outcome)
        self._answer()
        self._drop()

    def _say(self, memory: _WorkerMemory, text: str) -> None:
        """To the agents that wait for it; else to ours."""
        waiting = [line for line, wish in self._settling if wish.owner == memory.owner]
        for line in waiting or [self._agent]:
            self._tell(line, Said(text=text))


def _write_state(memory: _WorkerMemory, index: int, sequence: int) -> tuple[Written | None, BufferWritten]:
    """Write the state with this number from the buffer; also the report. Raises nothing."""
    try:
        view = memory.view(index)
        state = state_block.read(view)
        if state is None or state.sequence != sequence:
            raise EverstepError(f"state {sequence} is not whole in memory", code="state-not-whole")
        what = unpack(state.description)
        memory.storage = memory.storage or open_storage(memory.uri)
        written = write_image(
            memory.storage,
            what,
            state.image(view),
            is_abandoned=lambda: memory.has_waited_enough or memory.world > what.manifest.world_generation,
        )
    except Exception as error:
        if not isinstance(error, EverstepError):
            log.exception("a write failed")
        problem, hint = getattr(error, "message", repr(error)), getattr(error, "hint", "") or ""
        cause = getattr(error, "kind", type(error).__name__)
        return None, BufferWritten(index=index, sequence=sequence, problem=problem, hint=hint, cause=cause)
    return written, BufferWritten(
        index=index, sequence=sequence, step=written.step, size_bytes=written.size_bytes, seconds=written.seconds
    )


def _unpacked(state: state_block.WholeState | None) -> Description | None:
    try:
        return unpack(state.description) if state is not None else None
    except CheckpointBroken:
        return None


def main() -> None:
    """With the descriptors of the listening socket and of the agent's line as arguments, and, if it has one, the bound
    on what dead workers leave."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the agent decides when it ends
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    listener, agent = (socket.socket(fileno=int(each)) for each in sys.argv[1:3])
    SaverServer(listener, agent, *map(int, sys.argv[3:4])).serve()
