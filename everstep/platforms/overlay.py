"""`raw` of a job file on top of what we would submit: mappings key by key, lists at their end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def overlaid(ours: Any, theirs: Any) -> Any:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        added = {key: value for key, value in theirs.items() if key not in ours}
        return {
            **{key: overlaid(value, theirs[key]) if key in theirs else value for key, value in ours.items()},
            **added,
        }
    if isinstance(ours, list) and isinstance(theirs, list):
        return [*ours, *theirs]
    return theirs
