"""What is refused before anything is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.cli.submitted import submit_file
from everstep.errors import UsageError


def test_a_search_is_not_run_as_one_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("entrypoint: train.py\nsearcher: {name: random, max_trials: 4}\n")
    with pytest.raises(UsageError, match="random: only single is run"):
        submit_file(Path("job.yaml"), [], platform=None, is_dry=False, follows=False)
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


def test_an_entrypoint_that_would_not_travel_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("entrypoint: train.py\nimage: x\nplatform: {name: kubernetes}\n")
    (tmp_path / "train.py").write_text("")
    (tmp_path / ".gitignore").write_text("train.py\n")
    with pytest.raises(UsageError, match="train.py is in .* but not among the 2 files that are sent") as told:
        submit_file(Path("job.yaml"), [], platform=None, is_dry=True, follows=False)
    assert "!/train.py into .everstepignore" in str(told.value)
