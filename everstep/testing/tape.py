"""The events of a cluster, read from its file as they are written. Knows nothing of processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class Tape:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._events: list[Event] = []

    def read(self) -> list[Event]:
        """All events until now, in the order in which they were written."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._position)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._position += len(whole) + len(newline)
            self._events += [event for line in whole.splitlines() if (event := _parsed(line)) is not None]
        return self._events


def _parsed(line: bytes) -> Event | None:
    """None: it was cut short, by a disk that was full."""
    try:
        event: Event = json.loads(line)
    except ValueError:
        return None
    return event


def is_match(event: Event, name: str, facts: dict[str, Any]) -> bool:
    """Whether it is the event asked for; a fact is a value, or a function that says yes to the value."""
    return event["event"] == name and all(_is_so(event.get(key), wanted) for key, wanted in facts.items())


def _is_so(value: Any, wanted: Any) -> bool:
    return bool(wanted(value)) if callable(wanted) else bool(value == wanted)
