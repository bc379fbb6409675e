"""One cluster for all tests of this folder. The first one that needs it may have to wait until it is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kube_lab import UP_S, Lab, open_lab

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first = next(
        (each for each in items if "lab" in getattr(each, "fixturenames", ()) and HERE in each.path.parents), None
    )
    if first is not None:
        first.add_marker(pytest.mark.timeout(UP_S + 300))


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    with open_lab() as lab:
        yield lab
