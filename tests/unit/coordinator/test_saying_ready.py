"""A coordinator says where it is, and serves all the same where nobody can read it."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from everstep.coordinator.edge.server import _say_ready


def test_a_full_disk_under_its_log_keeps_no_coordinator_from_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(full, write_through=True))
        _say_ready("http://10.0.0.5:7070", None, tmp_path / "url")
    assert (tmp_path / "url").read_text() == "http://10.0.0.5:7070\n"
