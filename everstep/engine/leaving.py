"""Leave in good order: requested in the background, because the script may still have work to do with the others after
its last step; granted once no other worker needs this one's state."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Leaving(SystemExit):
    """This worker was asked to leave and has left in good order; ends the script with exit code 0."""

    def __init__(self) -> None:
        super().__init__(0)


ASKED = "asked to end by SIGTERM"
_SAME_S = 2.0  # a batch system signals all processes of a node, then the agent signals its workers: one request


class LeaveRequest:
    """To leave after a step. `may_leave(reason)` asks the coordinator, and may take long."""

    def __init__(self, reason: str, may_leave: Callable[[str], bool]) -> None:
        self.reason = reason
        self._answer: Future[bool] = Future()
        self._may_leave = may_leave
        threading.Thread(target=self._ask, name="everstep-leave", daemon=True).start()

    def await_answer(self) -> bool:
        """Wait for the answer. False: the generation closed meanwhile, and this worker is needed in the next one."""
        return self._answer.result()

    def _ask(self) -> None:
        try:
            self._answer.set_result(self._may_leave(self.reason))
        except BaseException as error:  # raised again where the answer is taken
            self._answer.set_exception(error)


def on_sigterm(wish: Callable[[], None]) -> None:
    """SIGTERM means: leave after the step in progress. A second one, a while later, ends the process as usual."""
    if threading.current_thread() is not threading.main_thread():
        return
    present = signal.getsignal(signal.SIGTERM)
    if present in (signal.SIG_DFL, None) or isinstance(present, _OnSigterm):  # else the script's own
        signal.signal(signal.SIGTERM, _OnSigterm(wish))


def wake_script() -> None:
    """Called from another thread: run the SIGTERM handler in the script's thread, even if that is waiting. No effect if
    the script handles SIGTERM itself."""
    if isinstance(signal.getsignal(signal.SIGTERM), _OnSigterm):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


class _OnSigterm:
    """Recognizable, so that the handler of an engine that has ended can be replaced."""

    def __init__(self, wish: Callable[[], None]) -> None:
        self._wish = wish
        self._asked_at: float | None = None

    def __call__(self, number: int, frame: Any) -> None:
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self._wish()
        elif time.monotonic() > self._asked_at + _SAME_S:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
