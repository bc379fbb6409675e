"""status.json: what a job's coordinator, or the script around it, said last; for whoever cannot ask it."""

from __future__ import annotations

import json
import time
from pathlib import Path

from everstep.errors import PermanentError
from everstep.platforms.base import State
from everstep.storage import private_file

_NAME = "status.json"


def read(folder: Path) -> tuple[State, str] | None:
    """A state and the reason for it; None: nothing was said yet."""
    try:
        told = json.loads((folder / _NAME).read_text())
        return told["state"], told["reason"]
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise PermanentError(f"{error.filename} is not ours to read", hint="ask as the user who runs the job") from None
    except ValueError:  # a script's last word is no whole file at once, and none on a full disk
        return "unknown", "its last word cannot be read"


def write(folder: Path, state: State, reason: str) -> None:
    private_file.write_json(folder / _NAME, {"state": state, "reason": reason, "at": time.time()})
