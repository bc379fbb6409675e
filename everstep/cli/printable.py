"""Text of jobs on a terminal: it must not move the cursor, rename the window or hide a line."""

from __future__ import annotations

import re

_COLORS = re.compile(r"\x1b\[[0-9;:]*m")
# All that terminals obey but the tab; and characters that turn the direction of the text around them.
_OBEYED = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Without colors; other control characters as \\x1b."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], _COLORS.sub("", text))


def printable_lines(text: str) -> str:
    """As `printable`, line by line."""
    return "\n".join(map(printable, text.split("\n")))


def counted(number: int, unit: str) -> str:
    """1 batch, 2 batches; 1 trial, 2 trials"""
    one = "batch" if unit == "batches" else unit.removesuffix("s")
    return f"{number} {one if number == 1 else unit}"
