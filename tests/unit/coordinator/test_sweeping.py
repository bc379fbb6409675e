"""The checkpoints of an experiment that is over: what is deleted, and what could not be reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoint.manifest import CheckpointKey
from everstep.coordinator.experiments.facts import CheckpointRecord
from everstep.coordinator.experiments.sweeping import delete_files, find_absent


def saved(uri: Path | str, step: int) -> CheckpointRecord:
    known: dict[str, Any] = {"job": "e1-t1", "experiment": 1, "trial": 1, "generation": 1, "num_bytes": 1}
    unknown: dict[str, Any] = {"metrics": {}, "metric": None, "code": "", "created_at": 0.0}
    return CheckpointRecord(uuid=f"{Path(uri).name}-{step}", uri=str(uri), step=step, **known, **unknown)


def test_those_that_the_trial_has_deleted_itself_are_gone_and_those_of_other_machines_are_not_reached(
    tmp_path: Path,
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    folder = here / CheckpointKey(generation=1, step=4).folder
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    all_ = [saved(here, 2), saved(here, 4), saved(elsewhere, 6)]

    assert delete_files(all_) == (["here-2", "here-4"], 1)
    assert not folder.exists()
    assert delete_files(all_) == (["here-2", "here-4"], 1), "a sweep that was interrupted is repeated"
    assert not elsewhere.exists()


@pytest.mark.parametrize("uri", ["github://x", "reference://x", "nonsense://x", "~nobody-has-this-name/x", "a\0b"])
def test_a_uri_that_cannot_be_opened_is_not_reached_and_the_others_are_deleted(tmp_path: Path, uri: str) -> None:
    (tmp_path / "here").mkdir()
    assert delete_files([saved(uri, 2), saved(tmp_path / "here", 4)]) == (["here-4"], 1)
    assert find_absent([saved(uri, 2), saved(tmp_path / "here", 4)]) == ["here-4"]
