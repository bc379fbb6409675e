"""Types of a message's fields that say how large a value may be: `step: Count`, `incarnation: Name`.

The coordinator's edge enforces them, and OpenAPI shows them. Neither pydantic nor annotated_types is imported here:
workers import this module, and annotated_types alone would add 28 ms to each start."""

from __future__ import annotations

from typing import Annotated, Any

from everstep.settings import MAX_NUMBER

MAX_INT = 1 << 53  # exact in JSON everywhere, and in any database
MAX_NAME = 256
MAX_TEXT = 1 << 16  # any text without a bound of its own


class Bounds:
    """Limits by pydantic's names: `ge`, `le`, `min_length`, `max_length`."""

    def __init__(self, **limits: float) -> None:
        self._limits = limits

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), **self._limits}


class OneOf:
    """One of these texts."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> Any:
        return {"type": "literal", "expected": list(self._texts)}


Count = Annotated[int, Bounds(ge=0, le=MAX_INT)]
Positive = Annotated[int, Bounds(ge=1, le=MAX_INT)]
CountOrNone = Annotated[int, Bounds(ge=-1, le=MAX_INT)]  # -1: none
Whole = Annotated[int, Bounds(ge=-MAX_INT, le=MAX_INT)]
Port = Annotated[int, Bounds(ge=0, le=65535)]
Amount = Annotated[float, Bounds(ge=0, le=MAX_NUMBER)]  # seconds, rates, …
Name = Annotated[str, Bounds(max_length=MAX_NAME)]
PathName = Annotated[str, Bounds(min_length=1, max_length=MAX_NAME)]
