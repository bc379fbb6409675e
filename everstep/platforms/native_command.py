"""A platform's own command-line tools: their output, or the reason for a failure."""

from __future__ import annotations

from collections.abc import Sequence

from everstep import process
from everstep.errors import PermanentError, UsageError

_ANSWER_S = 120.0  # a busy controller is slow


def ask(command: Sequence[str], *, hint: str | None = None) -> str:
    """The command's output. `hint`: the remedy if it fails."""
    try:
        answer = process.ask(command, timeout_s=_ANSWER_S)
    except FileNotFoundError:
        raise UsageError(
            f"{command[0]} not found", hint="use a login node of the cluster", code="scheduler-not-found"
        ) from None
    except TimeoutError:
        raise PermanentError(
            f"{command[0]} did not answer within {_ANSWER_S:.0f} s", code="scheduler-timeout"
        ) from None
    if not answer.exit.is_good:
        said = (answer.errors.strip() or answer.text.strip() or str(answer.exit)).splitlines()
        raise UsageError(f"{command[0]}: {'; '.join(said[-3:])}", hint=hint, code="scheduler-refused")
    return answer.text
