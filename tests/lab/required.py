"""Parts of the lab that may be missing on a laptop, but not in continuous integration."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(what: str, why: str) -> NoReturn:
    """Skip the test with the reason; where everything must be tested, fail."""
    (pytest.fail if os.environ.get("EVERSTEP_REQUIRE_LABS") == "1" else pytest.skip)(f"no {what} to test with: {why}")
