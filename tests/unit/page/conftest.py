"""The page's scripts in Node."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.page_scripts import PageScripts


@pytest.fixture
def node(tmp_path: Path) -> PageScripts:
    return PageScripts(tmp_path)
