"""What a run leaves in its folder, and what the next one makes of it."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from everstep.cli.main import app
from everstep.launcher import run_record
from everstep.launcher.run_record import FINISHED, INTERRUPTED, LEFT, RUNNING, RunRecord
from everstep.process import started_at
from everstep.storage import private_file

HERE = RunRecord(job="j", is_host=True, pid=os.getpid(), pid_started_at=started_at(os.getpid()))
GONE = replace(HERE, pid_started_at="1")  # the number is another process's by now


@pytest.mark.parametrize(
    ("record", "is_taken_up"),
    [
        (GONE, True),  # killed
        (replace(GONE, state=LEFT), True),
        (replace(GONE, state=INTERRUPTED), False),  # all nodes left in good order
        (replace(GONE, state=FINISHED), False),
        (replace(GONE, is_host=False), False),
        (replace(GONE, job="another"), False),
        (HERE, False),  # it runs
    ],
)
def test_a_job_is_taken_up_if_its_host_was_killed_or_left_others_behind(
    record: RunRecord, is_taken_up: bool, tmp_path: Path
) -> None:
    run_record.write(tmp_path / "j-1", record)
    assert run_record.unfinished(tmp_path, "j") == (tmp_path / "j-1" if is_taken_up else None)


def test_only_the_newest_run_of_a_job_counts(tmp_path: Path) -> None:
    for number, record in enumerate([GONE, replace(GONE, state=FINISHED)]):
        run_record.write(tmp_path / f"j-{number}", record)
        os.utime(tmp_path / f"j-{number}" / "run.json", (number, number))
    assert run_record.unfinished(tmp_path, "j") is None
    assert [path.name for path, _ in run_record.newest_first(tmp_path, "j")] == ["j-1", "j-0"]


def test_a_run_does_not_fail_because_its_end_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run_record.write(tmp_path, HERE)
    monkeypatch.setattr(private_file, "write", full)
    run_record.update(tmp_path, state=FINISHED)
    assert "No space left on device" in caplog.text


def test_an_agent_in_the_folder_of_a_run_does_not_speak_for_it(tmp_path: Path) -> None:
    run = replace(HERE, pid=os.getppid(), pid_started_at=started_at(os.getppid()))
    run_record.write(tmp_path, run)
    run_record.begin(tmp_path, "j", is_host=False)
    run_record.update(tmp_path, state=FINISHED)
    assert run_record.read(tmp_path) == run and run.shown_state == RUNNING


def test_a_damaged_record_is_none(tmp_path: Path) -> None:
    run_record.write(tmp_path / "j-1", HERE)
    (tmp_path / "j-1" / "run.json").write_text('{"job": "j", "unheard": 1}')
    assert run_record.read(tmp_path / "j-1") is None
    assert list(run_record.newest_first(tmp_path)) == []


def test_status_finds_a_run_by_its_id(tmp_path: Path) -> None:
    for job in ("one", "two"):
        run_record.write(tmp_path / job, replace(GONE, job=job, state=FINISHED))
    shown = CliRunner().invoke(app, ["status", "one", "--log-dir", str(tmp_path)])
    assert shown.exit_code == 0 and shown.output.startswith("one: finished")
