"""A platform's own command line tools: what they answer, or why they do not."""

from __future__ import annotations

from collections.abc import Sequence

from everstep import process
from everstep.errors import PermanentError, UsageError

_ANSWER_S = 120.0  # a busy controller takes its time


def ask(command: Sequence[str], *, hint: str | None = None) -> str:
    """What it prints. `hint`: the way out, should it refuse."""
    try:
        answer = process.ask(command, timeout_s=_ANSWER_S)
    except FileNotFoundError:
        raise UsageError(f"there is no {command[0]} here", hint="use a login node of the cluster") from None
    except TimeoutError:
        raise PermanentError(f"{command[0]} did not answer within {_ANSWER_S:.0f} s") from None
    if not answer.exit.is_good:
        said = (answer.errors.strip() or answer.text.strip() or str(answer.exit)).splitlines()
        raise UsageError(f"{command[0]}: {'; '.join(said[-3:])}", hint=hint)
    return answer.text
