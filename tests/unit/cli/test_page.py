"""`everstep page FOLDER`: of a run that is still going, its coordinator; of a copy, the record."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from everstep.cli.page import PageOptions, _coordinator_of
from everstep.coordinator.edge.record_server import RecordAnswers
from everstep.coordinator.finished_record import open_record
from everstep.coordinator.roster.facts import Roster
from everstep.coordinator.store.store import Store
from everstep.jobs.leave_record import write_about
from everstep.launcher import run_record
from everstep.record.about import STORE, RecordAbout
from everstep.storage import private_file
from everstep.wire import Policy


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


def test_the_folder_of_a_submitted_job_leads_to_its_coordinator_until_the_job_is_over(folder: Path) -> None:
    (folder / run_record.NAME).unlink()
    (folder / STORE).unlink()
    store = Store(str(folder / STORE))
    store.save(None, Roster(job="job-1", name="", policy=Policy()))
    store.close()
    (folder / "coordinator.url").write_text("http://127.0.0.1:1\n")

    assert coordinator_of(folder) == "http://127.0.0.1:1 job-1"
    with open_record(folder) as record:
        assert re.match(r"as of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d: it has no end", record.lacks_end())
        assert "as of 20" in RecordAnswers(record).jobs().jobs[0].reason

    write_about(folder, RecordAbout(job="job-1", state="succeeded"))
    assert coordinator_of(folder) is None
    with open_record(folder) as record:
        assert record.lacks_end() == ""


def test_the_folder_of_a_copy_leads_to_its_files(folder: Path) -> None:
    (folder / "token").unlink()
    assert coordinator_of(folder) is None
