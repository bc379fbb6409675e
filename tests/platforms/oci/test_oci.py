"""OCI, emulated: the stories that every platform passes, and what only this one does."""

from __future__ import annotations

import pytest

from contract import PlatformContract
from oci_lab import OciLab


class TestOci(PlatformContract):
    @pytest.fixture
    def place(self, lab: OciLab) -> OciLab:
        return lab
