"""All stories share what takes long to start and is not what they are about."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nest import close_nest, open_nest


@pytest.fixture(scope="session", autouse=True)
def closed_descriptors() -> None:
    """What was left open by whoever has started the tests is not for those that the tests start."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # that of the list itself
                os.set_inheritable(int(name), False)


@pytest.fixture(scope="session", autouse=True)
def shared_nest(closed_descriptors: None) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        open_nest(Path(folder))
        yield
        close_nest()
