from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.ranks import Play, stage


@pytest.fixture(scope="module")
def play(request: pytest.FixtureRequest) -> Iterator[Play]:
    """Plays stories of the script of the module's name, in its folder."""
    test = Path(request.path)
    with stage(test.parent / "scripts" / f"{test.stem.removeprefix('test_')}.py") as play:
        yield play
