"""A checkpoint that nothing on this machine has saved is found by its uuid, by what this user knows of its job."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

import everstep
from everstep import wire
from everstep.checkpoint.index import checkpoint_uuid
from everstep.coordinator.experiments.facts import CheckpointRecord
from everstep.coordinator.roster.facts import Roster
from everstep.coordinator.store.experiment_rows import Changes, write_changes
from everstep.coordinator.store.log_store import LogStore
from everstep.coordinator.store.store import Store
from everstep.errors import NoCheckpoint
from everstep.experimental import client
from everstep.jobs.leave_record import copy_record, place_beside
from everstep.jobs.submitted import save as save_job
from everstep.platforms.base import JobRecord
from everstep.record.about import STORE, RecordAbout
from everstep.storage.database import open_engine
from everstep.storage.shared_folder import SharedFolder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    for name in ("EVERSTEP_COORDINATOR", "DET_MASTER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def bucket() -> Iterator[str]:
    name = uuids.uuid4().hex
    yield f"memory://{name}"
    fsspec.filesystem("memory").rm(f"/{name}", recursive=True)


def submitted(tmp_path: Path, **job: Any) -> JobRecord:
    """A job that this user has submitted; its folder has nothing of it."""
    record = JobRecord(id="job-1", name="t", platform="local", created_at=0.0, folder=str(tmp_path / "none"), job=job)
    save_job(record)
    return record


def save(place: str | Path, *steps: int) -> None:
    """As a worker elsewhere does."""
    with everstep.Checkpointer(place) as checkpointer:
        for step in steps:
            checkpointer.save(step, {"weight": float(step)}, wait=True)


def fetch(uuid: str, tmp_path: Path, **given: Any) -> Any:
    path = client.get_checkpoint(uuid, **given).download(tmp_path / "got")
    return everstep.Checkpointer(path).load(path.step)


@pytest.mark.parametrize("below", ["", "/sums-0a1b2c/1", "/e3-t7"])
def test_in_the_bucket_that_a_submitted_jobs_file_names(tmp_path: Path, bucket: str, below: str) -> None:
    save(f"{bucket}/runs{below}", 5, 10)
    uuid = checkpoint_uuid(f"{bucket}/runs{below}", 10)
    submitted(tmp_path, checkpoint={"uri": f"{bucket}/runs/"})
    assert fetch(uuid, tmp_path) == {"weight": 10.0}


def test_on_a_volume_by_the_path_that_it_has_here(tmp_path: Path) -> None:
    save(tmp_path / "disk" / "runs" / "sums-0a1b2c" / "1", 5)
    uuid = checkpoint_uuid("/inside/runs/sums-0a1b2c/1", 5)
    submitted(tmp_path, checkpoint="/inside/runs", volumes=[{"source": str(tmp_path / "disk"), "target": "/inside"}])
    assert fetch(uuid, tmp_path) == {"weight": 5.0}


def test_where_the_jobs_record_says_if_the_script_has_chosen_the_place(tmp_path: Path, bucket: str) -> None:
    save(f"{bucket}/of-the-script", 5)
    uuid = checkpoint_uuid(f"{bucket}/of-the-script", 5)
    folder = tmp_path / "coordinator"
    folder.mkdir()
    url = f"sqlite:///{folder / STORE}"
    numbers: Any = dict.fromkeys(("experiment", "trial", "generation", "num_bytes", "created_at"), 0)
    report = CheckpointRecord(
        uuid=uuid, job="job-1", uri=f"{bucket}/of-the-script", step=5, metrics={}, metric=None, code="", **numbers
    )
    lost = replace(report, uuid=str(uuids.uuid4()), uri="/only/there")
    with closing(Store(url)) as store, closing(LogStore(url, store.epoch)):
        store.save(None, Roster(job="job-1", name="train.py", policy=wire.Policy()))
        engine = open_engine(url)
        with engine.begin() as connection:
            write_changes(connection, Changes(checkpoints=[report, lost]))
        engine.dispose()
    submitted(tmp_path, checkpoint=f"{bucket}/runs")
    copy_record(
        folder, RecordAbout(job="job-1", state="succeeded"), SharedFolder(uri=place_beside(f"{bucket}/runs", "job-1"))
    )
    assert fetch(uuid, tmp_path) == {"weight": 5.0}
    with pytest.raises(NoCheckpoint) as unknown:
        client.get_checkpoint(lost.uuid)
    assert "/only/there" in unknown.value.message


def test_by_its_place_where_nothing_is_known_of_its_job(tmp_path: Path, bucket: str, home: Path) -> None:
    save(f"{bucket}/runs/sums-0a1b2c/1", 5)
    uuid = checkpoint_uuid(f"{bucket}/runs/sums-0a1b2c/1", 5)
    submitted(tmp_path, checkpoint=f"{bucket}/another")
    with pytest.raises(NoCheckpoint) as unknown:
        client.get_checkpoint(uuid)
    assert unknown.value.code == "checkpoint-uuid-unknown"
    assert str(home) in unknown.value.message and f"{bucket}/another" in unknown.value.message
    assert fetch(uuid, tmp_path, uri=f"{bucket}/runs") == {"weight": 5.0}


@pytest.mark.parametrize("is_named", [True, False], ids=["a file that is not there", "none"])
def test_without_a_token_for_the_coordinator_the_jobs_are_asked(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    save(bucket, 5)
    monkeypatch.setenv("EVERSTEP_COORDINATOR", "http://127.0.0.1:1")
    monkeypatch.delenv("EVERSTEP_TOKEN", raising=False)
    monkeypatch.delenv("EVERSTEP_TOKEN_FILE", raising=False)
    if is_named:
        monkeypatch.setenv("EVERSTEP_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(NoCheckpoint) as unknown:
        client.get_checkpoint(checkpoint_uuid(bucket, 5))
    assert "http://127.0.0.1:1 (" in unknown.value.message
    submitted(tmp_path, checkpoint=bucket)
    assert fetch(checkpoint_uuid(bucket, 5), tmp_path) == {"weight": 5.0}


def test_a_coordinator_that_is_gone_is_named_and_the_jobs_are_asked(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(bucket, 5)
    monkeypatch.setenv("EVERSTEP_COORDINATOR", "http://127.0.0.1:1")
    monkeypatch.setenv("EVERSTEP_TOKEN", "x")
    monkeypatch.setattr("everstep.experimental.checkpoint._ASK_S", 0.1)
    with pytest.raises(NoCheckpoint) as unknown:
        client.get_checkpoint(checkpoint_uuid(bucket, 5))
    assert "http://127.0.0.1:1" in unknown.value.message
    submitted(tmp_path, checkpoint=bucket)
    assert fetch(checkpoint_uuid(bucket, 5), tmp_path) == {"weight": 5.0}
