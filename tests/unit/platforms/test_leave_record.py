"""The record that a coordinator leaves beside the checkpoints: all of it, in time, also if it was killed before."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from everstep.coordinator.finished_record import open_record
from everstep.coordinator.store.log_reader import LogReader
from everstep.coordinator.store.log_store import LogBounds, LogStore, NewLines
from everstep.errors import StorageUnreachable
from everstep.job_file.order import NodeOrder
from everstep.jobs.coordinate import run_coordinate
from everstep.jobs.leave_record import add_checkpoints, copy_record
from everstep.jobs.options import CoordinateOptions
from everstep.platforms import status_file
from everstep.record.about import RecordAbout
from everstep.record.log_chunk import STDOUT, PrintedLine, chunk_of
from everstep.storage.shared_folder import SharedFolder
from everstep.wire import LogsRequest

BOUNDS = LogBounds(max_bytes=1 << 30, days=30)


def keep(store: LogStore, text: str) -> None:
    chunk = chunk_of([PrintedLine(1.8e9, 20, STDOUT, text)])
    line = NewLines(
        worker="w0",
        node="n0",
        rank=0,
        first_line=0,
        stdout=9,
        stderr=0,
        dropped_lines=0,
        dropped_bytes=0,
        chunk=chunk,
        data=chunk.pack(),
    )
    store.keep("job", [line], [], BOUNDS)


def lines_of(path: Path) -> list[str]:
    with closing(LogReader.of_file(path)) as reader:
        return [each.text for each in reader.read("job", LogsRequest()).lines]


@pytest.fixture
def folder(tmp_path: Path):
    """With the log of a coordinator that was killed: its last lines are in the journal only."""
    folder = tmp_path / "job"
    folder.mkdir()
    with closing(LogStore(f"sqlite:///{folder / 'coordinator.db'}", epoch=1)) as store:
        keep(store, "the last words")
        yield folder


def test_the_copy_has_the_lines_that_are_in_the_journal_only(folder: Path, tmp_path: Path) -> None:
    copy_record(folder, RecordAbout(job="job", state="failed"), SharedFolder(uri=str(tmp_path / "saved")))

    with open_record(tmp_path / "saved") as record:
        assert [each.text for each in record.logs(LogsRequest()).lines] == ["the last words"]
        assert (record.about.state, list(record.about.files)) == ("failed", ["coordinator-logs.db"])
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "saved").iterdir()} == {
        "coordinator-logs.db": 0o600,
        "record.json": 0o600,
    }
    assert [path.name for path in folder.iterdir() if "copy" in path.name] == []


def test_a_record_on_a_disk_that_cannot_be_written_is_read(folder: Path, tmp_path: Path) -> None:
    copy_record(folder, RecordAbout(job="job"), SharedFolder(uri=str(tmp_path / "saved")))
    names = sorted(path.name for path in (tmp_path / "saved").iterdir())
    for path in (tmp_path / "saved" / "coordinator-logs.db", tmp_path / "saved"):
        path.chmod(path.stat().st_mode & ~0o222)
    with open_record(tmp_path / "saved") as record:
        assert [each.text for each in record.logs(LogsRequest(regex="w.rds")).lines] == ["the last words"]
        assert record.series().series == []
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == names
    (tmp_path / "saved").chmod(0o700)


class SilentStorage(MemoryFileSystem):
    protocol = "silent"
    answers = threading.Event()

    def put_file(self, *_: object, **__: object) -> None:
        self.answers.wait()

    def ls(self, path: str, *given: Any, **more: Any) -> Any:
        if "unlisted" in path:
            self.answers.wait()
        return super().ls(path, *given, **more)


@pytest.fixture
def silent() -> Iterator[str]:
    fsspec.register_implementation("silent", SilentStorage, clobber=True)
    SilentStorage.answers.clear()
    yield "silent://bucket"
    SilentStorage.answers.set()
    for thread in threading.enumerate():
        if thread.name == "record copy":
            thread.join()


def test_a_storage_that_does_not_answer_does_not_hold_the_coordinator(folder: Path, silent: str) -> None:
    with pytest.raises(StorageUnreachable, match=r"within 0\.2 s"):
        copy_record(folder, RecordAbout(job="job"), SharedFolder(uri=silent), deadline_s=0.2)


def test_a_storage_that_lists_nothing_does_not_hold_the_coordinator_or_a_run(
    folder: Path, silent: str, tmp_path: Path
) -> None:
    about, unlisted = RecordAbout(job="job"), f"{silent}/unlisted"
    with pytest.raises(StorageUnreachable, match=r"within 0\.2 s"):
        copy_record(folder, about, SharedFolder(uri=str(tmp_path / "saved")), checkpoints=unlisted, deadline_s=0.2)
    with pytest.raises(StorageUnreachable, match=r"listing the checkpoints in silent://bucket/unlisted did not finish"):
        add_checkpoints(folder, about, unlisted, deadline_s=0.2)


def test_at_its_next_start_a_coordinator_copies_with_the_variables_and_secrets_of_the_storage(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    status_file.write(folder, "succeeded", "all done")
    (folder / "secrets.json").write_text('{"AWS_SECRET_ACCESS_KEY": "key"}')
    variables = {"AWS_ENDPOINT_URL": "http://here"}
    order = NodeOrder(job="job", name="job", script="train.py", record_to=f"{tmp_path}/saved", env=variables)

    assert run_coordinate(CoordinateOptions(order=order.to_json(), folder=folder), print) == 0
    assert (os.environ["AWS_ENDPOINT_URL"], os.environ["AWS_SECRET_ACCESS_KEY"]) == ("http://here", "key")
    assert not (folder / "secrets.json").exists()


def test_a_job_that_succeeded_stays_so_if_its_record_json_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    status_file.write(folder, "succeeded", "all done")
    (folder / "record.json").write_text("{")
    order, said = NodeOrder(job="job", name="job", script="train.py", record_to=f"{tmp_path}/saved"), list[str]()

    assert run_coordinate(CoordinateOptions(order=order.to_json(), folder=folder), said.append) == 0
    assert said[-1].startswith(f"could not save the record in {tmp_path}/saved: ")


def test_a_coordinator_that_was_killed_while_it_copied_copies_at_its_next_start(folder: Path, tmp_path: Path) -> None:
    status_file.write(folder, "succeeded", "all done")
    order = NodeOrder(job="job", name="job", script="train.py", record_to=f"{tmp_path}/saved")

    assert run_coordinate(CoordinateOptions(order=order.to_json(), folder=folder), print) == 0
    assert lines_of(tmp_path / "saved" / "record" / "job" / "coordinator-logs.db") == ["the last words"]


def test_values_of_secrets_in_the_command_are_masked(folder: Path) -> None:
    status_file.write(folder, "succeeded", "all done")
    (folder / "secrets.json").write_text('{"KEY": "open sesame"}')
    order = NodeOrder(job="job", name="job", script="train.py", args=("--key=open sesame", "-v"), secrets=("KEY",))

    assert run_coordinate(CoordinateOptions(order=order.to_json(), folder=folder), print) == 0
    with open_record(folder) as record:
        assert record.about.configuration["args"] == ["--key=***", "-v"]
        assert record.about.configuration["secrets"] == ["KEY"]


def test_so_are_passwords_that_no_one_declared(folder: Path) -> None:
    status_file.write(folder, "succeeded", "all done")
    order = NodeOrder(
        job="job",
        name="job",
        script="train.py",
        args=("--api-key", "open sesame", "--from=https://me:swordfish@host"),
        env={"HUB_TOKEN": "hunter2hunter2"},
        setup=("pip install --index-url https://me:swordfish@host/simple x", "login hunter2hunter2"),
    )

    assert run_coordinate(CoordinateOptions(order=order.to_json(), folder=folder), print) == 0
    with open_record(folder) as record:
        told = record.about.configuration
        assert told["args"] == ["--api-key", "***", "--from=https://me:***@host"]
        assert told["setup"] == ["pip install --index-url https://me:***@host/simple x", "login ***"]
        assert told["env"] == ["HUB_TOKEN"]
