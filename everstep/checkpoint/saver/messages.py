"""Messages between a saver and the workers and agents of its node (ipc/local_socket.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_args


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenBuffers:
    """From a worker, first of all: give me memory for the states of this storage. `place` is its place on the node, the
    same after a restart: so it finds the memory of its predecessor. `owner`: of the states, such as a trial; the saver
    of several gives none the states of another."""

    uri: str
    place: str = ""
    owner: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuffersOpened:
    """With a file for each buffer. `busy` are those still being written."""

    busy: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteBuffer:
    """From a worker: write the state with this number to storage."""

    index: int
    sequence: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferWritten:
    """It is durable; or, with a problem, it could not be written. In both cases the buffer is free."""

    index: int
    sequence: int
    step: int = -1  # of a state that was written
    size_bytes: int = 0
    seconds: float = 0.0
    problem: str = ""
    hint: str = ""
    cause: str = ""  # failures of one cause are reported once


@dataclass(frozen=True, kw_only=True, slots=True)
class AskHeld:
    """From a worker: which whole states of this storage are in memory? `is_patient`: answer once none of them is being
    written."""

    uri: str
    is_patient: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """One whole state, with its file. The last message of an answer has no file."""

    is_last: bool = False
    is_written: bool = False  # to storage, where someone may have deleted it since


@dataclass(frozen=True, kw_only=True, slots=True)
class Forget:
    """From a worker: the states of a step, or all with None, were deleted and must not come back."""

    uri: str
    step: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AskWritten:
    """From the agent of workers that have ended: tell me when all that they left of this owner is on storage."""

    owner: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AllWritten:
    """The answer; or, with a problem, something could not be written."""

    problem: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class DropStates:
    """From the saver's agent: this owner is over, its written states are not needed any more."""

    owner: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """From the saver to an agent: a line for people."""

    text: str


Message = (
    OpenBuffers
    | BuffersOpened
    | WriteBuffer
    | BufferWritten
    | AskHeld
    | Held
    | Forget
    | AskWritten
    | AllWritten
    | DropStates
    | Said
)
KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}
