"""status.json: the last report of a job's coordinator, or of the script around it."""

from __future__ import annotations

import json
import time
from pathlib import Path

from everstep.errors import PermanentError
from everstep.platforms.base import State
from everstep.storage import private_file

_NAME = "status.json"


def read(folder: Path) -> tuple[State, str] | None:
    """A state and its reason; None: no report yet."""
    try:
        told = json.loads((folder / _NAME).read_text())
        return told["state"], told["reason"]
    except FileNotFoundError:
        return None
    except PermissionError as error:
        message = f"no permission to read {error.filename}"
        raise PermanentError(message, hint="ask as the user who runs the job", code="status-not-readable") from None
    except ValueError:  # a script does not write it atomically, and a disk may be full
        return "unknown", "its last report cannot be read"


def write(folder: Path, state: State, reason: str) -> None:
    private_file.write_json(folder / _NAME, {"state": state, "reason": reason, "at": time.time()})
