from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.ranks import Play, stage

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="module")
def play(request: pytest.FixtureRequest) -> Iterator[Play]:
    """Plays stories of the script that has the module's name."""
    with stage(SCRIPTS / f"{Path(request.path).stem.removeprefix('test_')}.py") as play:
        yield play
