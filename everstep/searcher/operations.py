"""The operations of a search method: plain values. `to_plain` gives the form that is posted; `from_plain` reads it.

The method names its trials with UUIDs of its choice. A restarted method uses the same names, so a repeated post is
recognized."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from everstep.errors import UsageError


class SearcherOperation:
    """The base class of all operations."""

    kind: ClassVar[str]

    def to_plain(self) -> dict[str, Any]:
        """The operation as plain data for JSON, with UUIDs as strings."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}  # type: ignore[attr-defined]
        plain = {name: str(value) if isinstance(value, uuid.UUID) else value for name, value in fields.items()}
        return {"kind": self.kind, **plain}


Operation = SearcherOperation  # Determined's name


@dataclass(frozen=True)
class Create(SearcherOperation):
    """A new trial. `checkpoint`: the UUID of one to start from."""

    kind: ClassVar[str] = "create"
    request_id: uuid.UUID
    hparams: Mapping[str, Any]
    checkpoint: str | None = None


@dataclass(frozen=True)
class ValidateAfter(SearcherOperation):
    """Train the trial to this total length (not for this much longer), and validate."""

    kind: ClassVar[str] = "validate_after"
    request_id: uuid.UUID
    length: int

    def __post_init__(self) -> None:
        if isinstance(self.length, bool) or not isinstance(self.length, int) or self.length < 1:
            raise UsageError(
                f"ValidateAfter({self.request_id}, {self.length!r}) is not valid",
                hint="its length is a total, in the searcher's unit, and at least 1",
                code="searcher-operation",
            )


@dataclass(frozen=True)
class Close(SearcherOperation):
    """End the trial."""

    kind: ClassVar[str] = "close"
    request_id: uuid.UUID


@dataclass(frozen=True)
class Progress(SearcherOperation):
    """How much of the search is done, from 0 to 1."""

    kind: ClassVar[str] = "progress"
    progress: float

    def __post_init__(self) -> None:
        if not 0 <= self.progress <= 1:
            message = f"Progress({self.progress!r}) is not valid"
            raise UsageError(message, hint="use a number from 0 to 1", code="searcher-operation")


@dataclass(frozen=True)
class Shutdown(SearcherOperation):
    """End the experiment: COMPLETED, CANCELED if `cancel`, ERROR if `failure`."""

    kind: ClassVar[str] = "shutdown"
    cancel: bool = field(default=False)
    failure: bool = field(default=False)


_KINDS: dict[str, type[Any]] = {each.kind: each for each in (Create, ValidateAfter, Close, Progress, Shutdown)}


def from_plain(plain: Mapping[str, Any]) -> SearcherOperation:
    fields = {name: value for name, value in plain.items() if name != "kind"}
    try:
        if "request_id" in fields:
            fields["request_id"] = uuid.UUID(fields["request_id"])
        operation: SearcherOperation = _KINDS[str(plain.get("kind"))](**fields)
    except (KeyError, TypeError, ValueError, AttributeError):
        hint = f"its kind must be one of {', '.join(_KINDS)}, with all fields of that kind"
        raise UsageError(f"invalid operation: {dict(plain)}", hint=hint, code="searcher-operation") from None
    return operation
