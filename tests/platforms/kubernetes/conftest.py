"""One cluster for all tests of this folder, and no longer: its programs would take their part of the cores from all
later ones. The first test that needs it may have to wait until it is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.kubernetes.cluster import UP_S, Lab, open_lab

HERE = Path(__file__).parent
_running = ExitStack()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first = next((each for each in items if _needs_lab(each)), None)
    if first is not None:
        first.add_marker(pytest.mark.timeout(UP_S + 300))


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    with _running:
        yield _running.enter_context(open_lab())


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    later = item.session.items[item.session.items.index(item) + 1 :]
    if not any(map(_needs_lab, later)):
        _running.close()


def _needs_lab(item: pytest.Item) -> bool:
    return "lab" in getattr(item, "fixturenames", ()) and HERE in item.path.parents
