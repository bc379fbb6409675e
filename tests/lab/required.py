"""What a laptop may lack, continuous integration may not."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(what: str, why: str) -> NoReturn:
    """Say what was not tested; where all must be, fail."""
    (pytest.fail if os.environ.get("EVERSTEP_REQUIRE_LABS") == "1" else pytest.skip)(f"no {what} to test with: {why}")
