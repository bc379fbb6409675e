from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.oci.tenancy import OciLab, open_lab


@pytest.fixture(scope="session")
def lab_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OciLab]:
    with open_lab(tmp_path_factory.mktemp("oci")) as lab:
        yield lab


@pytest.fixture
def lab(lab_of_session: OciLab) -> Iterator[OciLab]:
    """A fresh tenancy."""
    yield lab_of_session
    lab_of_session.reset()
