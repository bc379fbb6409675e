"""`everstep page FOLDER`: of a run that is still going, its coordinator; of a copy, the record."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.cli.page import PageOptions, _coordinator_of
from everstep.launcher import run_record
from everstep.record.about import STORE
from everstep.storage import private_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "job"
    folder.mkdir(parents=True)
    (folder / STORE).touch()
    private_file.write(folder / "token", b"word\n")
    run_record.begin(folder, "job", is_host=True)
    run_record.update(folder, url="http://127.0.0.1:1")
    return folder


def coordinator_of(folder: Path) -> str | None:
    with _coordinator_of(PageOptions(id=str(folder))) as (coordinator, _):
        return None if coordinator is None else f"{coordinator.url} {coordinator.job}"


def test_the_folder_of_a_run_leads_to_its_coordinator_until_the_run_is_over(folder: Path) -> None:
    assert coordinator_of(folder) == "http://127.0.0.1:1 job"
    run_record.update(folder, state=run_record.FINISHED)
    assert coordinator_of(folder) is None


def test_the_folder_of_a_copy_leads_to_its_files(folder: Path) -> None:
    (folder / "token").unlink()
    assert coordinator_of(folder) is None
