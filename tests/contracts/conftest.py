from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.ranks import Play, stage


@pytest.fixture(scope="module")
def play(request: pytest.FixtureRequest) -> Iterator[Play]:
    """Plays stories of the script with the module's name, in the folder next to it."""
    test = Path(request.path)
    with stage(test.parent / "scripts" / f"{test.stem.removeprefix('test_')}.py") as play:
        yield play
