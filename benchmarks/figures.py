"""The figures of a benchmark: each is printed as soon as it is known, so that a run that is cut short keeps it. A part
that fails says why, and does not stop the others."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Figures:
    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.failed: list[str] = []

    def put(self, **figures: Any) -> None:
        for name, value in figures.items():
            if self.known.get(name) != value:
                print(f"{name} = {value}", flush=True)
        self.known.update(figures)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            print(f"{name} failed:\n{traceback.format_exc()}", flush=True)
            self.failed.append(name)
