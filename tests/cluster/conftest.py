"""All stories share what takes long to start and is not what they are about."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.nest import close_nest, open_nest


@pytest.fixture(scope="session", autouse=True)
def shared_nest() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        open_nest(Path(folder))
        yield
        close_nest()
