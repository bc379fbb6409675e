"""What the workers of a job have told (scripts/task.py), read from their file as it comes."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Fact = dict[str, Any]


class Facts:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0
        self._told: defaultdict[str, list[Fact]] = defaultdict(list)

    @property
    def num_told(self) -> int:
        self._read()
        return sum(len(told) for told in self._told.values())

    def of(self, kind: str) -> list[Fact]:
        self._read()
        return self._told[kind]

    def _read(self) -> None:
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._position)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._position += len(whole) + len(newline)
            for line in whole.splitlines():
                fact = json.loads(line)
                self._told[fact["fact"]].append(fact)
