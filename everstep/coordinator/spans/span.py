"""A span, and its IDs. They follow from what it is about, so a coordinator that starts again uses the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

Fact = str | int | float | bool
_TRACE_BYTES, _SPAN_BYTES = 16, 8


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanEvent:
    name: str
    time: float  # of day
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceSpan:
    """Something that is over."""

    subject: str  # what it was found with: see `subjects`
    trace: int
    id: int
    parent: int | None
    name: str
    start: float  # of day
    end: float
    facts: Mapping[str, Fact] = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()
    problem: str = ""  # why it failed


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanIds:
    """Those of one trace. `store`: a name that no other store has; `root`: the experiment, or the job."""

    store: str
    root: str

    @property
    def trace(self) -> int:
        return self._number(_TRACE_BYTES, "trace")

    @property
    def of_root(self) -> int:
        return self.of("root")

    def of(self, *what: object) -> int:
        return self._number(_SPAN_BYTES, *what)

    def _number(self, num_bytes: int, *what: object) -> int:
        text = "/".join(map(str, (self.store, self.root, *what)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:num_bytes], "big") or 1  # 0 means none
