"""Stories on real systems take longer than others: each of them starts machines first."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_LONGEST_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_LONGEST_S))
