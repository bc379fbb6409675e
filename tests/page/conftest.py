"""A real browser, and the files of a coordinator for it to look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.launcher.local_coordinator import CoordinatorFiles, private_directory
from lab.page_window import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def files(tmp_path: Path) -> CoordinatorFiles:
    return CoordinatorFiles(directory=private_directory(tmp_path / "coordinator"))
