"""The exception tree. An error's type says what to do; its text has the numbers, its hint the way out.

TemporaryError: wait and retry. PermanentError: stop. UsageError: change the call.
Knows nothing of torch or HTTP."""

from __future__ import annotations

import os
import sys
from types import TracebackType

_OURS = os.path.join(os.path.dirname(__file__), "")


class EverstepError(Exception):
    """Base of all our errors. `hint`: the way out, in one sentence. `code`: what programs and tests compare."""

    def __init__(self, message: str, *, hint: str | None = None, code: str = "") -> None:
        super().__init__(f"{message}\n  HINT: {hint}" if hint else message)
        self.message = message
        self.hint = hint
        self.code = code


class TemporaryError(EverstepError):
    """Wait and retry: the same call may succeed later, and not before `wait_s`."""

    def __init__(self, message: str, *, hint: str | None = None, wait_s: float = 0.0, code: str = "") -> None:
        super().__init__(message, hint=hint, code=code)
        self.wait_s = wait_s


class PermanentError(EverstepError):
    """Stop: no retry of the same call will succeed."""


class UsageError(EverstepError):
    """Change the call."""


class PeerLost(TemporaryError):
    """A peer of this generation is gone; the step was not applied and will be done again."""


class CoordinatorUnreachable(TemporaryError):
    """The coordinator did not answer in time; the request may be repeated."""


class Abandoned(EverstepError):
    """The wait was abandoned; the request may or may not have been carried out."""


CONFLICT, UNKNOWN = 409, 404  # statuses of what is refused


class Refused(PermanentError):
    """The coordinator said no (4xx) and changed nothing."""

    def __init__(
        self,
        message: str,
        *,
        status: int = CONFLICT,
        hint: str | None = None,
        wait_s: float = 0.0,
        code: str = "",
        sentence: str = "",
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.status = status
        self.sentence = sentence or message  # the coordinator's own, without the call
        self.wait_s = wait_s  # it may accept after this time


class JobStopped(PermanentError):
    """The coordinator ended the job; the message is its reason."""


class JobFinished(SystemExit):
    """The job ended well without this worker, which came too late or was away: exit code 0."""

    def __init__(self, reason: str) -> None:
        super().__init__(0)
        self.reason = reason


class StateMismatch(PermanentError):
    """Two workers that must hold the same bytes do not; names both sums and both workers."""


class StorageUnreachable(TemporaryError):
    """Storage did not answer, or answered with a passing error; the request may be repeated."""


class CheckpointBroken(PermanentError):
    """A file of a checkpoint is damaged; names the file, the place, and the expected content."""


class CheckpointFailed(PermanentError):
    """A checkpoint could not be written; earlier ones are unchanged. Failures of one `kind` are reported once."""

    def __init__(self, message: str, *, hint: str | None = None, kind: str = "", code: str = "") -> None:
        super().__init__(message, hint=hint, code=code)
        self.kind = kind


class NoCheckpoint(UsageError):
    """There is no whole checkpoint that matches."""


def hide_our_frames() -> None:
    """From now on, a UsageError or JobStopped that ends a script is shown with the script's own lines only."""
    if sys.excepthook is sys.__excepthook__:  # a notebook, or the script, may have its own
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    is_chained = error.__cause__ is not None or (error.__context__ is not None and not error.__suppress_context__)
    if isinstance(error, UsageError | JobStopped) and not is_chained:
        import traceback  # only now: every command imports this module

        frames = traceback.extract_tb(trace)
        while frames and (frames[-1].filename.startswith(_OURS) or "site-packages" in frames[-1].filename):
            frames.pop()
        if frames:
            lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)]
            sys.stderr.write("".join([*lines, *traceback.format_exception_only(error)]))
            return
    sys.__excepthook__(kind, error, trace)
