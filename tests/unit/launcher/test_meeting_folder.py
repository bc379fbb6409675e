"""Nodes meet by a folder: who finds whom, who waits, and who comes too late."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.errors import PermanentError, StorageUnreachable, UsageError
from everstep.launcher import meeting_folder
from everstep.launcher.meeting_folder import CONFIG, TOKEN, Meeting
from everstep.storage.shared_folder import SharedFolder

MEETING = Meeting(url="http://127.0.0.1:9", job="job-1", token="worker:secret", address="127.0.0.1")
SILENT = print


@pytest.fixture(params=["path", "file://", "memory://"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"path": str(tmp_path), "file://": f"file://{tmp_path}", "memory://": f"memory://{tmp_path}"}[request.param]


def test_what_the_first_node_writes_the_others_find(folder: str) -> None:
    assert meeting_folder.find(folder) is None
    meeting_folder.publish(folder, replace(MEETING, token="worker:secret\nuser:other"))
    assert meeting_folder.find(folder) == MEETING  # and not the user's token


def test_a_node_that_comes_when_its_job_is_over_need_not_wait(folder: str) -> None:
    meeting_folder.publish(folder, MEETING)
    meeting_folder.withdraw(folder, MEETING)

    assert meeting_folder.wait_for(folder, 600.0, SILENT, job="job-1").is_over
    assert SharedFolder(uri=folder).read(TOKEN) is None


@pytest.mark.parametrize(("job", "told"), [(None, "of a job that is over"), ("job-2", "is of job-1")])
def test_what_an_earlier_job_has_left_is_nobodys_end(folder: str, job: str | None, told: str) -> None:
    meeting_folder.publish(folder, MEETING)
    meeting_folder.withdraw(folder, MEETING)
    with pytest.raises(PermanentError, match=told):
        meeting_folder.wait_for(folder, 0.0, SILENT, job=job)


def test_what_another_run_has_written_since_stays(folder: str) -> None:
    newer = replace(MEETING, token="worker:newer", job="job-2")
    meeting_folder.publish(folder, MEETING)
    meeting_folder.publish(folder, newer)
    meeting_folder.withdraw(folder, MEETING)
    assert meeting_folder.find(folder) == newer


def test_a_file_that_is_not_ours_is_named(folder: str) -> None:
    SharedFolder(uri=folder).write(CONFIG, json.dumps({"OCI__MAIN_IP": "10.0.0.1"}).encode())
    SharedFolder(uri=folder).write(TOKEN, b"worker:secret")
    with pytest.raises(UsageError) as raised:
        meeting_folder.find(folder)
    assert raised.value.code == "meeting-file-foreign"


def test_on_a_disk_the_files_are_for_nobody_else(tmp_path: Path) -> None:
    meeting_folder.publish(f"file://{tmp_path}/deep/er", MEETING)
    assert (tmp_path / "deep" / "er").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "deep" / "er").iterdir()} == {0o600}


def test_a_folder_that_cannot_be_reached_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageUnreachable, match="file/x/name"):
        SharedFolder(uri=f"{tmp_path}/file/x").write("name", b"")
    with pytest.raises(UsageError, match="nosuch"):
        SharedFolder(uri="nosuch://bucket/x").read("name")
