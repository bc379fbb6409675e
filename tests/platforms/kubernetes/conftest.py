"""One cluster for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kube_lab import Lab, open_lab


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    with open_lab() as lab:
        yield lab
