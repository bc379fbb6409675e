"""The exception tree. An error's type says what to do; its text gives the numbers and the way out.

TemporaryError: wait and retry. PermanentError: stop. UsageError: change the call.
Knows nothing of torch or HTTP."""

from __future__ import annotations

import os
import sys
from types import TracebackType

_OURS = os.path.join(os.path.dirname(__file__), "")


class EverstepError(Exception):
    """Base of all our errors; `hint` is the way out, in one sentence."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{message}\n  HINT: {hint}" if hint else message)
        self.message = message
        self.hint = hint


class TemporaryError(EverstepError):
    """Wait and retry: the same call may succeed later, and not before `wait_s`."""

    def __init__(self, message: str, *, hint: str | None = None, wait_s: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.wait_s = wait_s


class PermanentError(EverstepError):
    """Stop: no retry of the same call will succeed."""


class UsageError(EverstepError):
    """Change the call."""


class PeerLost(TemporaryError):
    """A peer of this generation is gone; the step was not applied and will be done again."""


class CoordinatorUnreachable(TemporaryError):
    """The coordinator did not answer in time; what was asked may be asked again."""


class Abandoned(EverstepError):
    """Whoever waited was told to stop waiting; what was asked may or may not have been done."""


class Refused(PermanentError):
    """The coordinator said no (4xx) and changed nothing."""

    def __init__(self, message: str, *, status: int, hint: str | None = None, wait_s: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.wait_s = wait_s  # it may say yes after so long


class JobStopped(PermanentError):
    """The coordinator ended the job; the message is its reason."""


class JobFinished(SystemExit):
    """The job ended well without this worker, which came too late or was away: nothing is left to do, exit code 0."""

    def __init__(self, reason: str) -> None:
        super().__init__(0)
        self.reason = reason


class StateMismatch(PermanentError):
    """Two workers that must hold the same bytes do not; names both sums and both workers."""


class StorageUnreachable(TemporaryError):
    """Storage did not answer, or with an error that may pass; what was asked may be asked again."""


class CheckpointBroken(PermanentError):
    """A file of a checkpoint is not what it must be; names the file, the place, and what was expected there."""


class CheckpointFailed(PermanentError):
    """A checkpoint could not be written; what was written before is as it was."""

    kind = ""  # failures of one kind are told once


class NoCheckpoint(UsageError):
    """There is no whole checkpoint of that description."""


def hide_our_frames() -> None:
    """From now on, a UsageError that ends a script is shown with the script's own lines, and none of ours."""
    if sys.excepthook is sys.__excepthook__:  # a notebook, or the script, may have its own
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    is_chained = error.__cause__ is not None or (error.__context__ is not None and not error.__suppress_context__)
    if isinstance(error, UsageError) and not is_chained:
        import traceback  # only now: every command imports this module

        frames = traceback.extract_tb(trace)
        while frames and (frames[-1].filename.startswith(_OURS) or "site-packages" in frames[-1].filename):
            frames.pop()
        if frames:
            lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)]
            sys.stderr.write("".join([*lines, *traceback.format_exception_only(error)]))
            return
    sys.__excepthook__(kind, error, trace)
