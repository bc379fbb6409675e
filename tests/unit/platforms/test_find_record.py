"""The record of a job is found where it was left: in its folder, beside its checkpoints, on a volume, in a bucket."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import fsspec
import pytest

from everstep import wire
from everstep.coordinator.finished_record import open_record
from everstep.coordinator.roster.facts import Roster
from everstep.coordinator.store.log_store import LogStore
from everstep.coordinator.store.store import Store
from everstep.jobs.find_record import KEPT_DAYS, find_record, record_of
from everstep.jobs.leave_record import copy_record, place_beside
from everstep.platforms.base import JobRecord
from everstep.record.about import ABOUT, FILES, LOGS, METRICS, STORE, RecordAbout
from everstep.record.store import MetricStore
from everstep.record.writing import Incoming
from everstep.storage.shared_folder import SharedFolder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The folder of a coordinator that has ended."""
    folder = tmp_path / "coordinator"
    folder.mkdir()
    url = f"sqlite:///{folder / STORE}"
    with closing(Store(url)) as store, closing(LogStore(url, store.epoch)):
        store.save(None, Roster(job="job-1", name="train.py", policy=wire.Policy()))
        with closing(MetricStore(url, store.epoch)) as metrics:
            metrics.keep([Incoming("job-1", 0, [wire.MetricReport(step=1, time=2.0, values={"loss": 0.5})])])
    return folder


@pytest.fixture
def bucket() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield f"memory://{name}"
    fsspec.filesystem("memory").rm(f"/{name}", recursive=True)


def submitted(tmp_path: Path, **job: Any) -> JobRecord:
    folder = str(tmp_path / "runs" / "job-1")
    return JobRecord(id="job-1", name="train", platform="local", created_at=0.0, folder=folder, job=job)


def leave(left: Path, uri: str) -> None:
    copy_record(left, RecordAbout(job="job-1", state="succeeded"), SharedFolder(uri=place_beside(uri, "job-1")))


def losses(folder: Path) -> list[float | str]:
    with open_record(folder) as record:
        (series,) = record.series().series
        return list(record.series_window(series.series, is_full=True).firsts)


def test_beside_the_checkpoints_in_a_folder_it_is_read_in_place(left: Path, tmp_path: Path) -> None:
    leave(left, f"{tmp_path}/saved")
    found = record_of(submitted(tmp_path, checkpoint={"uri": f"{tmp_path}/saved"}))
    assert found == tmp_path / "saved" / "record" / "job-1"
    assert losses(found) == [0.5]
    with open_record(found) as record:
        assert (record.view().job, record.about.state) == ("job-1", "succeeded")


def test_on_a_volume_it_is_found_by_the_path_that_the_volume_has_here(left: Path, tmp_path: Path) -> None:
    leave(left, f"{tmp_path}/disk/x")
    volume = {"source": f"{tmp_path}/disk", "target": "/inside"}
    assert record_of(submitted(tmp_path, checkpoint="/inside/x", volumes=[volume])) is not None


def test_from_a_bucket_only_the_wanted_files_are_fetched_once_and_are_private(
    left: Path, tmp_path: Path, bucket: str, home: Path
) -> None:
    leave(left, bucket)
    record = submitted(tmp_path, checkpoint=bucket)
    found = record_of(record, [METRICS])
    assert found == home / "records" / "job-1"
    assert {path.name: path.stat().st_mode & 0o777 for path in found.iterdir()} == {METRICS: 0o600, ABOUT: 0o600}
    assert losses(found) == [0.5]

    fsspec.filesystem("memory").rm(f"{place_beside(bucket, 'job-1')}/{METRICS}")
    assert record_of(record, [METRICS]) == found
    assert {path.name for path in (record_of(record, [STORE, LOGS]) or Path()).iterdir()} == {ABOUT, *FILES}


def test_a_copy_without_its_record_json_is_not_whole_and_a_damaged_file_is_not_taken(
    left: Path, tmp_path: Path, bucket: str, home: Path
) -> None:
    leave(left, bucket)
    record, place = submitted(tmp_path, checkpoint=bucket), SharedFolder(uri=place_beside(bucket, "job-1"))
    about, data = place.read(ABOUT), place.read(METRICS)
    assert about is not None and data is not None
    place.write(METRICS, data[:-1] + b"x")
    assert record_of(record, [METRICS]) is None
    assert not (home / "records" / "job-1" / METRICS).exists()
    place.write(METRICS, data)
    place.remove([ABOUT])
    assert record_of(record, [METRICS]) is None
    place.write(ABOUT, about)
    assert record_of(record, [METRICS]) is not None


def test_fetched_records_are_removed_after_some_weeks(left: Path, tmp_path: Path, bucket: str, home: Path) -> None:
    old = home / "records" / "old"
    old.mkdir(parents=True)
    then = time.time() - (KEPT_DAYS + 1) * 86_400
    os.utime(old, (then, then))
    leave(left, bucket)
    assert record_of(submitted(tmp_path, checkpoint=bucket)) is not None
    assert not old.exists()


def test_a_folder_is_taken_as_it_is(left: Path, tmp_path: Path) -> None:
    assert find_record(str(left), log_dir=tmp_path / "runs") == left
    assert losses(left) == [0.5]  # without a record.json: its coordinator was killed
