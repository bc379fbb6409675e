"""For `pytest.raises(UsageError, check=has_code("not-a-trial"))`: errors compared by code, not by sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def has_code(*codes: str) -> Callable[[Any], bool]:
    return lambda error: error.code in codes
