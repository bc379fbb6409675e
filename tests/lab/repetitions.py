"""How often a test repeats itself: enough for every push, and more before a capability is called done."""

from __future__ import annotations

import os


def repetitions(number: int, *, long: int) -> int:
    """`long` under `make test-long`."""
    return long if os.environ.get("EVERSTEP_TEST_LONG") == "1" else number
