"""Replace the values of secrets in what leaves a node.

Pure. A value is also found as it looks in JSON, in a URL, and in base64; one of several lines, line by line."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

MASK = "***"
LEAST_CHARS = 4  # a shorter value is part of too many words: masking it would hide the log and tell the value


class Masks:
    def __init__(self, values: Iterable[str] = ()) -> None:
        shapes = {shape for value in values for shape in _shapes(value)}
        # The longest first: a value may be part of another.
        self._shapes = sorted((as_bytes(shape) for shape in shapes), key=lambda shape: (-len(shape), shape))
        self._mask = MASK.encode()
        self.longest = max(map(len, self._shapes), default=0)

    def apply(self, data: bytes) -> bytes:
        for shape in self._shapes:
            if shape in data:
                data = data.replace(shape, self._mask)
        return data

    def apply_text(self, text: str) -> str:
        return self.apply(as_bytes(text)).decode(errors="surrogateescape")

    def cut_before(self, data: bytes, at: int) -> int:
        """Where to cut `data` at or before `at`, so that no value is cut in two."""
        for shape in self._shapes:
            start = data.find(shape, max(0, at - len(shape) + 1), at + len(shape) - 1)
            if 0 <= start < at < start + len(shape):
                return self.cut_before(data, start)
        return at


def as_bytes(text: str) -> bytes:
    """Any text, also with bytes that Python could not decode, as in the name of a file, or with half a character."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="replace")


def too_short(values: Iterable[tuple[str, str]]) -> list[str]:
    """The names of those that cannot be masked."""
    return [name for name, value in values if 0 < len(value.strip()) < LEAST_CHARS]


def _shapes(value: str) -> Iterable[str]:
    for part in {value.strip(), *(line.strip() for line in value.splitlines())}:
        if len(part) >= LEAST_CHARS:
            yield part
            yield json.dumps(part)[1:-1]
            yield json.dumps(part, ensure_ascii=False)[1:-1]
            data = as_bytes(part)
            yield from (quote(data, safe=""), quote(data), quote_plus(data))
            yield from (repr(part)[1:-1], base64.b64encode(data).decode().rstrip("="))
