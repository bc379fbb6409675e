"""Each trial is trained in a fresh folder, as by a script train.py there, with a home of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text("# the script\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(folder / "train.py"), raising=False)
    return folder
