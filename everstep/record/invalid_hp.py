"""`everstep.InvalidHP`: raised anywhere in a trial's script, it ends the trial, and the search replaces it.

Its hyperparameters cannot be trained: this is not a failure, so the script ends with exit code 0. Outside a trial it
is an ordinary exception."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from everstep.errors import EverstepError
from everstep.record.trial import current_trial, end_as_invalid


class InvalidHP(EverstepError):
    """These hyperparameters are not worth training, or cannot be."""

    def __init__(self, message: str = "", **more: Any) -> None:
        super().__init__(message, **{"code": "invalid-hp", **more})
        if current_trial() is not None and sys.excepthook is not _end_trial:
            global _usual
            _usual, sys.excepthook = sys.excepthook, _end_trial


_usual = sys.__excepthook__


def _end_trial(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Every worker calls this: repeats change nothing, and only one worker may have raised it."""
    if isinstance(error, InvalidHP) and end_as_invalid(error.message or "the script raised InvalidHP"):
        sys.stderr.write(f"everstep: InvalidHP: {error.message or 'no reason given'}; the trial ends\n")
        sys.exit(0)
    _usual(kind, error, trace)
