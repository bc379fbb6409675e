"""What a worker and its node's saver say to each other (packet.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenArena:
    """From a worker: memory for the states of this storage. `place` is its place on the node, the same after a
    restart, so that it finds the memory again that its forerunner has left."""

    uri: str
    place: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArenaOpened:
    """With a file for each slot. `busy` are those still being written."""

    busy: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteSlot:
    """From a worker: write the state with this number to storage."""

    index: int
    sequence: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotWritten:
    """It is durable; or, with a problem, it could not be written. In both cases the slot is free."""

    index: int
    sequence: int
    step: int = -1  # of a state that was written
    size_bytes: int = 0
    seconds: float = 0.0
    problem: str = ""
    hint: str = ""
    cause: str = ""  # failures of one cause are told once


@dataclass(frozen=True, kw_only=True, slots=True)
class AskHeld:
    """From a worker: which whole states of this storage are in memory? `is_patient`: answer when nothing of it is
    being written any more."""

    uri: str
    is_patient: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """One whole state, with its file. The last of an answer has none."""

    sequence: int = 0
    is_last: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Forget:
    """From a worker: the states of a step, or all with None, were deleted and must not come back."""

    uri: str
    step: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """From the saver to its agent: a line for people."""

    text: str


Message = OpenArena | ArenaOpened | WriteSlot | SlotWritten | AskHeld | Held | Forget | Said
KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (OpenArena, ArenaOpened, WriteSlot, SlotWritten, AskHeld, Held, Forget, Said)
}
