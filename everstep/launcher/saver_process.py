"""The agent's side of the saver: a socket that workers find it by, and its process, started for the first worker.

A job that saves no checkpoints has no such process. It outlives us (checkpoint/saver/process.py): whatever happens to
the agent, the states in memory are written. One that was killed is restarted for the next worker. A pool's agent has
one for all trials of its node. Knows nothing of torch."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from everstep import env
from everstep.checkpoint.saver.messages import KINDS, DropStates, Said
from everstep.events import emit
from everstep.ipc.event_loop import EventLoop
from everstep.ipc.local_socket import listen, pair, receive_packet, send_packet
from everstep.process import program_command, reap_detached, start_detached
from everstep.storage import private_file
from everstep.waiting import SAID_AFTER_S

if TYPE_CHECKING:
    from everstep.launcher.spare_saver import SpareSaver

WRITE_OUT_S = 600.0  # an agent waits this long for the last states to be written; its saver continues
_MAX_STARTS = 8  # of its process, in a row; after that, workers write for themselves
_STEADY_S = 60.0  # one that lasts this long begins a new row


class SaverProcess:
    """Used from the agent's thread alone: `open`, then `close` when all workers are gone."""

    def __init__(
        self,
        path: Path,
        loop: EventLoop,
        say: Callable[[str], None],
        spare: SpareSaver | None = None,
        *,
        most_left_bytes: int | None = None,
    ) -> None:
        """`most_left_bytes`: bound on the memory of ended workers; None: it is kept until the end."""
        self._path, self._loop, self._say, self._spare = path, loop, say, spare
        self._arguments = [] if most_left_bytes is None else [str(most_left_bytes)]
        self._listener: socket.socket | None = None
        self._line: socket.socket | None = None  # to the process, if there is one
        self.pid = 0  # of its process; 0: there is none
        self._num_starts, self._started_at = 0, 0.0

    @property
    def path(self) -> Path | None:
        """Where workers find it; None if no saver can be started."""
        return self._path if self._listener is not None else None

    def open(self) -> None:
        mark_of(self._path).unlink(missing_ok=True)
        try:
            self._listener = listen(self._path)
        except OSError as problem:
            self._say(f"no saver, checkpoints are written by the workers themselves: {problem}")
            return
        self._loop.watch(self._listener, self._start)

    def close(self) -> None:
        """Wait until all that the workers have left in memory is written."""
        if self._listener is not None:
            if self._line is None:
                self._loop.forget(self._listener)
            self._close_listener()
        if self._line is not None:
            self._line.shutdown(socket.SHUT_WR)
            self._await_end(time.monotonic() + WRITE_OUT_S)

    def release(self, owner: str) -> None:
        """It is over, and so are its states in memory."""
        if self._line is not None:
            try:
                send_packet(self._line, DropStates(owner=owner))
            except OSError:  # it has ended, which its line reports
                pass

    def _close_listener(self) -> None:
        assert self._listener is not None
        self._listener.close()
        self._listener = None
        self._path.unlink(missing_ok=True)

    def _start(self) -> None:
        """A worker connects: the process will accept it."""
        assert self._listener is not None
        self._loop.forget(self._listener)
        now = time.monotonic()
        self._num_starts = 1 if now > self._started_at + _STEADY_S else self._num_starts + 1
        self._started_at = now
        self._line, theirs = pair()
        try:
            private_file.write(mark_of(self._path), b"")
            self.pid = self._start_process(theirs)
        except OSError as problem:  # a disk that became read-only, no process left: this node's workers continue
            self._line.close()
            self._line = None
            self._say(f"the saver cannot be started, checkpoints are written by the workers themselves: {problem}")
            self._close_listener()
            return
        emit("saver.opened", saver=self.pid)
        self._loop.watch(self._line, self._hear)

    def _start_process(self, theirs: socket.socket) -> int:
        assert self._listener is not None
        with theirs, private_file.append(f"{self._path}.log") as output:
            files = [self._listener.fileno(), theirs.fileno()]
            if self._spare is not None and not self._spare.is_used:
                return self._spare.start(env.everything(), output, files, self._arguments)
            command = program_command("everstep.checkpoint.saver.process", *map(str, files), *self._arguments)
            return start_detached(command, env=env.everything(), output=output, descriptors=files)

    def _hear(self) -> None:
        assert self._line is not None and self._listener is not None
        if not self._take(0.0):
            self._loop.forget(self._line)
            self._bury()
            if self._num_starts < _MAX_STARTS:
                self._say("the saver has ended and is restarted for the next worker that needs it")
                self._loop.watch(self._listener, self._start)
            else:
                self._say(
                    f"the saver has ended {self._num_starts} times, workers write for themselves: {self._path}.log"
                )
                self._close_listener()

    def _take(self, timeout_s: float) -> bool:
        """Repeat what it says; False: it is gone."""
        assert self._line is not None
        try:
            received = receive_packet(self._line, KINDS, timeout_s)
        except EOFError:
            return False
        if received is not None and isinstance(received[0], Said):
            self._say(received[0].text)
        return True

    def _await_end(self, deadline: float) -> None:
        assert self._line is not None
        self._loop.forget(self._line)
        speak_at = time.monotonic() + SAID_AFTER_S
        while (left_s := deadline - (now := time.monotonic())) > 0:
            if now >= speak_at:
                self._say(
                    f"waiting up to {left_s:.0f} s for the saver (pid {self.pid}), which writes the last checkpoints; "
                    "it continues if this agent is killed"
                )
                speak_at = deadline
            if not self._take(min(left_s, max(0.0, speak_at - now))):
                self._bury()
                return
        self._say(
            f"the saver (pid {self.pid}) is still writing after {WRITE_OUT_S:.0f} s and continues without this agent"
        )

    def _bury(self) -> None:
        assert self._line is not None
        self._line.close()
        reap_detached(self.pid)
        mark_of(self._path).unlink(missing_ok=True)
        self._line, self.pid = None, 0


def mark_of(path: Path) -> Path:
    """A file that is there while a saver's process runs."""
    return Path(f"{path}.runs")
