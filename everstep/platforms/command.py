"""A platform's own command line tools: what they answer, or why they do not."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from everstep.errors import PermanentError, UsageError

_ANSWER_S = 120.0  # a busy controller takes its time


def ask(command: Sequence[str], *, hint: str | None = None) -> str:
    """What it prints. `hint`: the way out, should it refuse."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
    except FileNotFoundError:
        raise UsageError(f"there is no {command[0]} here", hint="use a login node of the cluster") from None
    except subprocess.TimeoutExpired:
        raise PermanentError(f"{command[0]} did not answer within {_ANSWER_S:.0f} s") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        raise UsageError(f"{command[0]}: {'; '.join(said[-3:])}", hint=hint)
    return done.stdout
