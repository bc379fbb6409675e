"""The connection between the devices of one generation. It forms in the background, and is abandoned as soon as a peer
is lost: the old communicator ends in the background while the next one forms.

Aborting NCCL takes half a second or longer, and nothing waits for that. But each dying communicator holds GPU memory,
so a worker that has too many of them exits and is replaced."""

from __future__ import annotations

import threading
import time

import torch
import torch.distributed as dist

from everstep.engine import background
from everstep.engine.backend import Backend
from everstep.engine.communicator import Communicator, Nccl, StandIn, sum_over
from everstep.engine.group import WAIT_S, Group, GroupForming, gloo_words
from everstep.engine.lane import borrow_lane, give_back_lane
from everstep.errors import EverstepError, PeerLost, PermanentError
from everstep.events import emit
from everstep.waiting import wait_until

MOST_DYING = 2
_LOOK_S = 0.0002
DYING_S = 10.0  # a worker with more dying communicators waits this long before it exits

_dying: dict[tuple[int, str], str] = {}  # by generation and name: why it ended
_dying_changed = threading.Condition()


class DeviceLink:
    """Thread-safe. `abort` never blocks."""

    def __init__(
        self, group: Group, backend: Backend, device: torch.device, *, is_exact: bool, name: str = "device"
    ) -> None:
        """`is_exact`: the kind of sums to connect for; `name`: tells the links of one group apart."""
        self.device, self.backend, self.is_exact = device, backend, is_exact
        self.lane = borrow_lane(device)  # for small sums, before the first step
        self.is_ended = False  # True: it touches no memory
        self.error = ""  # why it failed, unless it was aborted first
        self._group, self._name = group, name
        self._attempt = GroupForming()
        self._changed = threading.Condition()
        self._communicator: Communicator | None = None
        self._is_connected = self._is_aborted = False
        self._failure: Exception | None = None
        self._why = ""
        background.start("everstep-link", self._form)

    # --- forming ----------------------------------------------------------------------------------------

    def _form(self) -> None:
        began = time.monotonic()
        try:
            self._await_deaths()
            communicator = self._make()
            with self._changed:
                self._communicator = communicator
                is_late = self._is_aborted
            if is_late:
                self._end(communicator)
                return
            self._warm(communicator)
        except Exception as error:
            with self._changed:
                self._failure = error.with_traceback(None)  # its frames would keep sockets open
                self.error = self.error if self._is_aborted else gloo_words(error)
                self._changed.notify_all()
                is_nothing_made = self._communicator is None
            if is_nothing_made:
                self._give_back()
            return
        with self._changed:
            self._is_connected = True
            self._changed.notify_all()
        emit("link.formed", generation=self._group.world.generation, backend=self.backend.value,
             seconds=time.monotonic() - began)  # fmt: skip

    def _make(self) -> Communicator:
        if self.backend is Backend.STAND_IN:
            return StandIn(self._group, self._attempt)
        return Nccl(self._group.world, f"{self._group.purpose}/{self._name}", self.device, self._attempt)

    def _warm(self, communicator: Communicator) -> None:
        """Make all connections that sums need before the first sum: each rank has something to send."""
        world = self._group.world
        with self.lane.entered():
            sum_over(communicator, world, torch.zeros(world.size, device=self.device), is_exact=self.is_exact)
            self.lane.finish()

    def _await_deaths(self) -> None:
        with _dying_changed:
            if not _dying_changed.wait_for(lambda: len(_dying) <= MOST_DYING or self._is_aborted, DYING_S):
                (generation, _), why = next(iter(_dying.items()))
                raise PermanentError(
                    f"{len(_dying)} NCCL communicators have not ended; the oldest: generation {generation}, {why}",
                    hint="this worker exits; it is replaced if the job has restarts left",
                    code="nccl-does-not-end",
                )

    # --- in use -----------------------------------------------------------------------------------------

    def await_connected(self, timeout_s: float | None = None) -> Communicator:
        """Wait for the connection. Raises PeerLost if the generation is closed first, or after `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_connected or self._failure or self._is_aborted, timeout_s)
            failure = self._failure
            if isinstance(failure, EverstepError):
                # A new exception: through the traceback of this one, the link would hold the frames that hold the link.
                raise type(failure)(failure.message, hint=failure.hint, code=failure.code)
            if failure is not None or not self._is_connected:
                said = gloo_words(failure) if failure else f"not connected within {timeout_s} s"
                raise PeerLost(f"{self.backend.value}: {self._closed if self._is_aborted else said}", code="link-lost")
            self.check()
            assert self._communicator is not None
            return self._communicator

    def await_end_of(self, work: dist.Work) -> None:
        """Poll, because a wait inside CUDA cannot be interrupted. Raises PeerLost if the work was aborted."""
        wait_until(lambda: work.is_completed() or self._is_aborted, WAIT_S, "a collective", pause_s=_LOOK_S)
        self.check()

    def check(self) -> None:
        """Raise PeerLost if the link was aborted. If not, all operations that have ended are intact."""
        with self._changed:
            if self._is_aborted:
                raise PeerLost(self._closed, code="link-aborted")

    @property
    def _closed(self) -> str:
        return f"generation {self._group.world.generation} was closed"

    def note_error(self, error: BaseException) -> None:
        """Record that an operation has failed."""
        with self._changed:
            self.error = self.error if self._is_aborted else gloo_words(error)  # type: ignore[arg-type]

    # --- the end ----------------------------------------------------------------------------------------

    def abort(self, why: str = "") -> None:
        """Abort operations under way, now; the rest of the cleanup runs in the background. Safe from any thread."""
        with self._changed:
            if self._is_aborted:
                return
            self._is_aborted, self._why = True, why or self._closed
            communicator = self._communicator
            self._changed.notify_all()
        self._attempt.give_up()
        with _dying_changed:
            _dying_changed.notify_all()  # this link may be waiting for others to end
        if communicator is not None:
            background.start("everstep-abort", lambda: self._end(communicator))

    def _end(self, communicator: Communicator) -> None:
        generation, name = self._group.world.generation, self._name
        with _dying_changed:
            _dying[generation, name] = self._why
        began = time.monotonic()
        try:
            communicator.end()
        except RuntimeError as error:  # from NCCL; the communicator is gone anyway
            self.error = self.error or gloo_words(error)
        self._give_back()
        with _dying_changed:
            _dying.pop((generation, name), None)
            _dying_changed.notify_all()
        emit("link.ended", generation=generation, seconds=time.monotonic() - began)

    def _give_back(self) -> None:
        self.is_ended = True
        give_back_lane(self.lane)
