"""Send what this node's workers print to the coordinator, in a thread and on a connection of its own: no report of a
death ever waits for it.

The coordinator knows how much of each worker's output it has kept, so each line is kept once, also after a
restart of either. The names of workers whose output may not be complete there are in a file. The next agent of this
folder takes over what a killed one has left, by the lock that the kernel frees. A chunk or a worker that the
coordinator refuses is left out by itself, and said; so is a file that cannot be read."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from everstep.client.calls import Coordinator
from everstep.errors import EverstepError, Refused, TemporaryError
from everstep.launcher.worker_files import WorkerFiles
from everstep.launcher.worker_output import OutputLines, OutputPosition, WorkerOutput
from everstep.record.log_chunk import MAX_CHUNK_BYTES, STDERR, PrintedLine, chunk_of
from everstep.record.log_levels import INFO
from everstep.record.log_masks import Masks
from everstep.storage import private_file
from everstep.wire import MAX_CHUNKS, LogChunk, LogChunks, LogPosition

log = logging.getLogger("everstep")

_TICK_S = 0.3
_AGAIN_S = 1.0  # after a call that failed
_MAX_CALL_BYTES = 600_000  # of chunks; the coordinator takes a megabyte
_MAX_NOTES, _NOTES_PER_CALL, _MAX_NOTE_CHARS = 10_000, 100, 2_000
_MAX_ASKED = 1_000
_SUFFIX = ".unsent-logs"
_UNKNOWN_WORKER = "log-worker-unknown"
_OF_CONTENT = (413, 422)  # status of a refusal that concerns what was sent, not who sends it


@dataclass(kw_only=True)
class _Followed:
    output: WorkerOutput
    is_alive: Callable[[], bool]
    is_done: bool = False  # ended, and all of it is kept
    is_refused: bool = False  # the coordinator does not know this worker
    is_unreadable: bool = False  # now; said once


class LogSender:
    def __init__(
        self,
        connect: Callable[[], Coordinator],
        *,
        agent: str,
        directory: Path,
        masks: Masks,
        say: Callable[[str], None],
    ) -> None:
        self._connect, self._agent, self._directory, self._masks, self._say = connect, agent, directory, masks, say
        self._followed: dict[str, _Followed] = {}
        self._new: deque[_Followed] = deque()
        self._notes: deque[tuple[float, str]] = deque(maxlen=_MAX_NOTES)
        self._notes_as, self._num_notes = f"{agent}/{uuid.uuid4().hex[:8]}", 0
        # Not by the process's number: in a container, each agent has the same.
        self._unsent = _UnsentWorkers(directory / f"{agent.replace('/', '_')}-{uuid.uuid4().hex[:8]}{_SUFFIX}")
        self._most_bytes = 0  # of a worker's file, once the coordinator has said so
        self._is_closing = threading.Event()
        self._give_up_at = float("inf")
        self._num_turns = 0
        self._thread = threading.Thread(target=self._run, name="agent logs", daemon=True)

    def __enter__(self) -> LogSender:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close(0.0)

    def follow(self, worker: str, files: WorkerFiles, *, rank: int, is_alive: Callable[[], bool]) -> None:
        """Follow a worker's files from the beginning, until the worker has ended and everything is sent."""
        output = WorkerOutput(worker, files, rank=rank, masks=self._masks)
        self._new.append(_Followed(output=output, is_alive=is_alive))

    def note(self, line: str) -> None:
        """What was said to people on this node."""
        self._notes.append((time.time(), line))

    def close(self, patience_s: float) -> None:
        """Send the rest within `patience_s`; give up early if the coordinator does not answer. May be called again."""
        if self._is_closing.is_set():
            return
        self._give_up_at = time.monotonic() + patience_s
        self._is_closing.set()
        if self._thread.is_alive():
            self._thread.join(patience_s + _TICK_S)
        self._adopt_new()
        left, unreadable = self._left()
        if left and patience_s:
            self._say(f"the coordinator has not confirmed {left:,} bytes of the workers' output; see {self._directory}")
        if unreadable and patience_s:
            self._say(f"the output of {', '.join(unreadable)} could not be read; see {self._directory}")
        if self._notes and patience_s:
            log.warning("%d lines of this agent were not sent to the coordinator", len(self._notes))
        self._unsent.close(is_complete=not left and not unreadable)

    def _left(self) -> tuple[int, list[str]]:
        """Bytes that the coordinator has not kept, and workers whose files cannot be read."""
        left, unreadable = 0, list[str]()
        for each in list(self._followed.values()):
            if each.is_done or each.is_refused:
                continue
            try:
                left += each.output.num_left()
            except OSError:
                unreadable.append(each.output.worker)
        return left, unreadable

    # --- the thread ---

    def _run(self) -> None:
        self._take_over()
        while True:
            is_last = self._is_closing.is_set()
            try:
                with self._connect() as coordinator:
                    self._ask(coordinator)
                    self._send_on(coordinator)
                    return
            except TemporaryError as error:
                log.debug("cannot send worker output yet: %s", error.message)
            except EverstepError as error:  # refused: an unknown job, a wrong token
                log.warning("stopped sending worker output to the coordinator: %s", error.message)
                return
            except Exception as error:
                log.warning("failed to send worker output; trying again", exc_info=error)
            for each in self._followed.values():
                each.output.rewind()
            self._bound_files()
            if is_last or time.monotonic() + _AGAIN_S > self._give_up_at:
                return
            self._is_closing.wait(_AGAIN_S)

    def _send_on(self, coordinator: Coordinator) -> None:
        """Until all is sent after the end."""
        while True:
            is_last = self._is_closing.is_set()  # before the look: what came before is sent
            has_more = self._turn(coordinator)
            if is_last and (not has_more or time.monotonic() > self._give_up_at):
                return
            if not has_more:
                self._is_closing.wait(_TICK_S)

    def _turn(self, coordinator: Coordinator) -> bool:
        """Send what is new, in one call. Whether there may be more that should not wait for the next tick."""
        self._adopt_new()
        self._bound_files()
        chunks, num_bytes, done = list[LogChunk](), 0, list[_Followed]()
        now, is_behind = time.time(), False
        for each in self._in_turn():
            if num_bytes > _MAX_CALL_BYTES or len(chunks) == MAX_CHUNKS - 1:
                is_behind = True
                break
            is_ended = not each.is_alive()  # before its files are read to the end
            try:
                found = each.output.next_lines(now, is_ended=is_ended)
                each.is_unreadable = False
            except OSError as error:  # a file system that does not answer now: not the end
                self._note_unreadable(each, error)
                continue
            if found is not None:
                chunks.append(_chunk(found))
                num_bytes += len(chunks[-1].data)
                is_behind = is_behind or len(found.chunk.text) > MAX_CHUNK_BYTES // 4
            elif is_ended:
                done.append(each)
        chunks += self._note_chunks()
        self._deliver(coordinator, chunks)
        for each in done:
            each.is_done = True
        return is_behind or (bool(chunks) and self._is_closing.is_set())

    def _deliver(self, coordinator: Coordinator, chunks: Sequence[LogChunk]) -> None:
        """If they are refused, in halves, so that one that is refused does not hold up the others."""
        if not chunks:
            return
        try:
            kept = coordinator.send_logs(self._agent, LogChunks(chunks=list(chunks)))
        except Refused as refusal:
            if refusal.status not in _OF_CONTENT:
                raise
            if (half := len(chunks) // 2) == 0:
                self._leave_out(chunks[0].worker, refusal)
                return
            self._deliver(coordinator, chunks[:half])
            self._deliver(coordinator, chunks[half:])
            return
        self._most_bytes = kept.node_log_mb * 1_000_000
        self._continue(kept.positions)

    def _leave_out(self, worker: str, refusal: Refused) -> None:
        """Said by the logger: what is said to people would be sent, too."""
        if worker == self._notes_as:
            for _ in range(min(_NOTES_PER_CALL, len(self._notes))):
                self._notes.popleft()
            self._notes_as, self._num_notes = f"{self._agent}/{uuid.uuid4().hex[:8]}", 0
        else:
            each = self._followed[worker]
            each.is_refused = refusal.code == _UNKNOWN_WORKER
            each.output.drop_read()
        what = "all output" if refusal.code == _UNKNOWN_WORKER else "part of the output"
        log.warning("the coordinator refused %s of %s: %s", what, worker, refusal.message)

    def _note_unreadable(self, each: _Followed, error: OSError) -> None:
        if not each.is_unreadable:
            log.warning("the output of %s cannot be read; trying again: %s", each.output.worker, error)
        each.is_unreadable = True

    def _in_turn(self) -> list[_Followed]:
        """Those that may have something new, beginning with another one each time."""
        active = [each for each in self._followed.values() if not each.is_done and not each.is_refused]
        self._num_turns += 1
        first = self._num_turns % max(1, len(active))
        return active[first:] + active[:first]

    def _bound_files(self) -> None:
        """Also while the coordinator is away."""
        for each in self._followed.values():
            if self._most_bytes and not each.is_done:
                try:
                    each.output.free_old(self._most_bytes)
                except OSError as error:
                    self._note_unreadable(each, error)

    def _adopt_new(self) -> None:
        while True:
            try:
                each = self._new.popleft()
            except IndexError:
                return
            self._followed[each.output.worker] = each
            self._unsent.remember(each.output.worker, each.output.rank)

    def _continue(self, positions: list[LogPosition]) -> None:
        for at in positions:
            if at.worker in self._followed:
                position = OutputPosition(line=at.next_line, stdout=at.stdout, stderr=at.stderr)
                self._followed[at.worker].output.continue_from(position)
            elif at.worker == self._notes_as:
                while self._notes and self._num_notes < at.next_line:
                    self._notes.popleft()
                    self._num_notes += 1

    def _take_over(self) -> None:
        """What killed agents of this folder have left."""
        for worker, rank in self._unsent.take_over(self._directory):
            files = WorkerFiles(directory=self._directory / worker)
            output = WorkerOutput(worker, files, rank=rank, masks=self._masks)
            self._followed[worker] = _Followed(output=output, is_alive=lambda: False)

    def _ask(self, coordinator: Coordinator) -> None:
        """Learn where to continue: whether the last chunks were kept is not known after a failure."""
        names = [name for name, each in self._followed.items() if not each.is_done and not each.is_refused]
        for first in range(0, len(names), _MAX_ASKED):
            self._ask_for(coordinator, names[first : first + _MAX_ASKED])

    def _ask_for(self, coordinator: Coordinator, names: list[str]) -> None:
        """As `_deliver`."""
        try:
            self._continue(coordinator.send_logs(self._agent, LogChunks(asks=names)).positions)
        except Refused as refusal:
            if refusal.status not in _OF_CONTENT:
                raise
            if (half := len(names) // 2) == 0:
                self._leave_out(names[0], refusal)
                return
            self._ask_for(coordinator, names[:half])
            self._ask_for(coordinator, names[half:])

    def _note_chunks(self) -> list[LogChunk]:
        lines = [
            PrintedLine(said_at, INFO, STDERR, self._masks.apply_text(line.replace("\n", " "))[:_MAX_NOTE_CHARS])
            for said_at, line in list(self._notes)[:_NOTES_PER_CALL]
        ]
        if not lines:
            return []
        data = base64.b64encode(chunk_of(lines).pack()).decode()
        return [LogChunk(worker=self._notes_as, first_line=self._num_notes, stdout=0, stderr=0, data=data)]


class _UnsentWorkers:
    """Whose output may not be complete at the coordinator: a file, locked as long as this process lives."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._is_closed = False
        self._ranks: dict[str, int] = {}

    def remember(self, worker: str, rank: int) -> None:
        if self._is_closed:  # a call that was given up has come back
            return
        self._ranks[worker] = rank
        with contextlib.suppress(OSError):  # a full disk: only what a killed agent leaves would be lost
            if self._file is None:
                self._file = private_file.descriptor(self._path, os.O_RDWR)
                with private_file.if_it_can_lock():
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            data = json.dumps(self._ranks).encode()
            os.pwrite(self._file, data, 0)
            os.ftruncate(self._file, len(data))

    def take_over(self, directory: Path) -> Iterator[tuple[str, int]]:
        """Workers that dead agents of this folder had."""
        for path in sorted(directory.glob(f"*{_SUFFIX}")):
            if path == self._path:
                continue
            # To be written, because NFS locks no other; and where nothing can be locked, its agent may live.
            with contextlib.suppress(OSError, ValueError), path.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its agent lives
                left = {str(worker): int(rank) for worker, rank in json.loads(file.read()).items()}
                for worker, rank in left.items():
                    self.remember(worker, rank)
                path.unlink()
                yield from left.items()

    def close(self, *, is_complete: bool) -> None:
        self._is_closed = True
        if self._file is not None:
            if is_complete:
                self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


def _chunk(lines: OutputLines) -> LogChunk:
    return LogChunk(
        worker=lines.worker,
        first_line=lines.first_line,
        stdout=lines.end.stdout,
        stderr=lines.end.stderr,
        rank=lines.rank,
        data=base64.b64encode(lines.chunk.pack()).decode(),
        dropped_lines=lines.dropped_lines,
        dropped_bytes=lines.dropped_bytes,
    )
