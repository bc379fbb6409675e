"""How much a test does: enough for every push, and more before a feature counts as done."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")


def usual(number: T, *, long: T) -> T:
    """`long` under `make test-long`."""
    return long if os.environ.get("EVERSTEP_TEST_LONG") == "1" else number
