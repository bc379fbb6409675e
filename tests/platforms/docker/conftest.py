from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from lab.docker.engine import running_engine


@pytest.fixture(scope="session")
def engine() -> Iterator[Mapping[str, str]]:
    """The environment that leads to a docker engine."""
    with running_engine() as env:
        yield env
