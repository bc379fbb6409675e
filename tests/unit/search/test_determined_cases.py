"""No case of Determined's is left out: each has a test, or is among those that end differently here."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pathlib import Path

from unit.search.determined import CASES, NOT_COPIED, PLAYED, TWO_SEARCHES


def test_all_are_here():
    assert len(CASES) == 628 and Counter(case["id"] for case in CASES).most_common(1)[0][1] == 1


def test_each_has_a_test():
    for path in Path(__file__).parent.glob("test_determined_*.py"):
        import_module(f"unit.search.{path.stem}")
    without = {case for case, reason in NOT_COPIED.items() if reason == TWO_SEARCHES}
    assert {case["id"] for case in CASES} - PLAYED == without
    assert NOT_COPIED.keys() <= {case["id"] for case in CASES}
