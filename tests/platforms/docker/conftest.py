from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from lab.docker.engine import make_python_base, running_engine


@pytest.fixture(scope="session")
def engine() -> Iterator[Mapping[str, str]]:
    """The environment that leads to a docker engine."""
    with running_engine() as env:
        yield env


@pytest.fixture(scope="session")
def python_base(engine: Mapping[str, str]) -> str:
    """An image with Python, pip and torch to build others on."""
    return make_python_base(engine)
