"""What is refused before anything is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.errors import UsageError
from everstep.jobs.submitted import prepare


def test_a_search_is_not_run_as_one_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("entrypoint: train.py\nsearcher: {name: random, max_trials: 4}\n")
    with pytest.raises(UsageError, match="random: this file is an experiment"):
        prepare(Path("job.yaml"))
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


def test_an_entrypoint_that_would_not_travel_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("entrypoint: train.py\nimage: x\nplatform: {name: kubernetes}\n")
    (tmp_path / "train.py").write_text("")
    (tmp_path / ".gitignore").write_text("train.py\n")
    with pytest.raises(UsageError, match="train.py is in .* but not among the 2 files that are sent") as told:
        prepare(Path("job.yaml"))
    assert "!/train.py into .everstepignore" in str(told.value)
