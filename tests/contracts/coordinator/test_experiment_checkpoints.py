"""Checkpoints by UUID, the code of experiments, and what is deleted when an experiment is over."""

from __future__ import annotations

import hashlib
import shutil
import stat
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

import everstep
from everstep import wire
from everstep.checkpoint.index import checkpoint_uuid
from everstep.client.calls import Coordinator
from everstep.core import job_checkpoints
from everstep.core.cluster_info import get_cluster_info
from everstep.errors import NoCheckpoint, Refused
from lab.command import until
from lab.experiments import ToyTrials, spec
from lab.saved_reports import saved


@pytest.fixture
def people(server_on_each_store):
    server = server_on_each_store
    with Coordinator(server.url, server.token, f"plain-{uuid.uuid4().hex}") as coordinator:
        yield coordinator


@pytest.fixture
def toy_of(server_on_each_store):
    made = []

    def make(experiment):
        made.append(ToyTrials(server_on_each_store.url, server_on_each_store.token, experiment))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_checkpoint_of_any_job_is_found_by_its_uuid(people):
    people.create_job(wire.JobSpec())
    report = wire.CheckpointReport(uuid=uuid.uuid4().hex, uri="s3://b/x", step=5, num_bytes=7, metrics={"loss": "nan"})
    people.report_checkpoint(report)
    people.report_checkpoint(report)
    found = people.checkpoint(report.uuid)
    assert (found.uri, found.step, found.job, found.experiment, found.trial, found.metric) == (
        *("s3://b/x", 5, people.job, 0, 0, None),
    )
    assert (found.metrics, found.num_bytes, found.state) == ({"loss": "nan"}, 7, "COMPLETED")


def test_a_node_that_has_just_come_learns_the_jobs_latest_checkpoint(
    people, server_on_each_store, tmp_path, monkeypatch
):
    people.create_job(wire.JobSpec())
    for name, value in {"COORDINATOR": people.url, "TOKEN": server_on_each_store.token, "JOB": people.job}.items():
        monkeypatch.setenv(f"EVERSTEP_{name}", value)
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    assert get_cluster_info().latest_checkpoint is None
    with everstep.Checkpointer(tmp_path / "ckpt") as checkpointer:
        for step in (5, 10):
            checkpointer.save(step, {"weight": 1.0}, wait=True)
    first, last = (checkpoint_uuid(tmp_path / "ckpt", step) for step in (5, 10))
    people.report_checkpoint(wire.CheckpointReport(uuid=first, uri=str(tmp_path / "ckpt"), step=5))
    assert job_checkpoints.find(first) == (str(tmp_path / "ckpt"), 5)
    assert get_cluster_info().latest_checkpoint == last  # its report may still be on the way
    assert job_checkpoints.find(last) == (str(tmp_path / "ckpt"), 10)
    with pytest.raises(NoCheckpoint):
        job_checkpoints.find(str(uuid.uuid4()))


def test_a_trial_knows_its_best_and_its_latest_checkpoint(people, toy_of, tmp_path):
    toy = toy_of(people.create_experiment(spec("random", max_trials=1)).experiment)
    reports = [saved(tmp_path, 8), saved(tmp_path, 16), saved(tmp_path, 32, metrics={"loss": 0.4})]
    with toy.open(1) as job:
        job.report_result(wire.TrialResult(length=8, metric=0.1, batches=8))
        job.report_checkpoint(reports[0])  # validated before it was saved …
        job.report_checkpoint(reports[1])
        job.report_result(wire.TrialResult(length=16, metric=0.9, batches=16))  # … and after it was
        job.report_checkpoint(reports[2])
    trial = people.trial(toy.experiment, 1)
    assert (trial.best_checkpoint, trial.latest_checkpoint) == (reports[0].uuid, reports[2].uuid)
    assert toy.view().best.checkpoint == reports[0].uuid
    listed = people.checkpoints(toy.experiment, sort="metric").checkpoints
    assert [each.metric for each in listed] == [0.1, 0.4, 0.9]
    assert [each.step for each in people.checkpoints(toy.experiment).checkpoints] == [8, 16, 32]


@pytest.mark.parametrize("told", [{}, {"smaller_is_better": None}], ids=["left out", "left empty"])
def test_an_experiment_that_is_over_keeps_what_its_rules_say(people, toy_of, tmp_path, told):
    kept = wire.CheckpointsKept(trial_best=1, trial_latest=0)
    toy = toy_of(people.create_experiment(spec("random", max_trials=1, kept=kept, **told)).experiment)
    with toy.open(1) as job:
        for length, metric in ((8, 0.3), (16, 0.1), (64, 0.2)):
            job.report_checkpoint(saved(tmp_path, length, metrics={"loss": metric}))
            job.report_result(wire.TrialResult(length=length, metric=metric, batches=length))
    assert toy.view().state == "COMPLETED"

    def states():
        return [each.state for each in people.checkpoints(toy.experiment).checkpoints]

    until(lambda: states() == ["DELETED", "COMPLETED", "DELETED"], lambda: f"{states()}")
    assert [each.name for each in sorted(tmp_path.iterdir()) if each.name.startswith("0")] == ["000001-000000000016"]
    people.act(toy.experiment, wire.ExperimentAction(action="delete"))
    until(lambda: not any(each.name.startswith("000001") for each in tmp_path.iterdir()), lambda: "not deleted")


@pytest.mark.parametrize("uri", ["/none/elsewhere", "reference://none"])
def test_files_that_the_coordinator_cannot_reach_stay_and_the_reason_says_so_once(people, toy_of, uri):
    kept = wire.CheckpointsKept(trial_best=0, trial_latest=0)
    toy = toy_of(people.create_experiment(spec("random", max_trials=1, kept=kept)).experiment)
    elsewhere = wire.CheckpointReport(uuid=uuid.uuid4().hex, uri=uri, step=64, generation=1)
    with toy.open(1) as job:
        job.report_checkpoint(elsewhere)
        job.report_result(wire.TrialResult(length=64, metric=0.1))
    until(lambda: "not deleted" in toy.view().reason, lambda: toy.view().reason)
    assert people.checkpoint(elsewhere.uuid).state == "COMPLETED"
    reason = toy.view().reason
    with toy.open(1) as job:
        for step in (16, 32):
            job.report_checkpoint(replace(elsewhere, uuid=uuid.uuid4().hex, step=step))
    people.change(toy.experiment, wire.ExperimentChange(kept=replace(kept, experiment_best=1)))
    until(lambda: toy.view().reason != reason, lambda: reason)
    assert toy.view().reason.count("not deleted") == 1


def test_files_that_their_trial_has_deleted_are_not_called_out_of_reach(people, toy_of, tmp_path):
    kept = wire.CheckpointsKept(trial_best=0, trial_latest=1)
    toy = toy_of(people.create_experiment(spec("random", max_trials=1, kept=kept)).experiment)
    with toy.open(1) as job:
        for length in (32, 64):
            job.report_checkpoint(saved(tmp_path, length))
        shutil.rmtree(tmp_path / "000001-000000000032")
        job.report_result(wire.TrialResult(length=64, metric=0.1, batches=64))

    def states():
        return [each.state for each in people.checkpoints(toy.experiment).checkpoints]

    until(lambda: states() == ["DELETED", "COMPLETED"], lambda: f"{states()}")
    assert "not deleted" not in toy.view().reason


def test_the_best_that_is_there_is_kept_if_the_script_has_deleted_a_better_one(people, toy_of, tmp_path):
    kept = wire.CheckpointsKept(trial_best=1, trial_latest=0)
    toy = toy_of(people.create_experiment(spec("random", max_trials=1, kept=kept)).experiment)
    with toy.open(1) as job:
        for length, metric in ((8, 0.1), (16, 0.2), (64, 0.3)):
            job.report_checkpoint(saved(tmp_path, length, metrics={"loss": metric}))
            if length == 16:
                shutil.rmtree(tmp_path / "000001-000000000008")
            job.report_result(wire.TrialResult(length=length, metric=metric, batches=length))

    def states():
        return [each.state for each in people.checkpoints(toy.experiment).checkpoints]

    until(lambda: states()[2] == "DELETED", lambda: f"{states()}")
    assert states() == ["DELETED", "COMPLETED", "DELETED"]
    assert (tmp_path / "000001-000000000016").is_dir()


def test_a_warm_start_is_found_by_trial_or_uuid_once_the_trial_is_over_and_kept_while_it_is_needed(
    people, toy_of, tmp_path
):
    first = toy_of(people.create_experiment(spec("random", max_trials=1)).experiment)
    reports = [saved(tmp_path, step) for step in (8, 64)]
    trial_id = people.trial(first.experiment, 1).trial_id
    by_trial, by_uuid = {"source_trial_id": trial_id}, {"source_checkpoint_uuid": reports[1].uuid}
    with first.open(1) as job:
        for report in reports:
            job.report_checkpoint(report)
        for begins in (by_trial, by_uuid):
            with pytest.raises(Refused) as refused:
                people.create_experiment(spec("random", max_trials=1, **begins))
            assert refused.value.code == "checkpoint-of-open-trial"
            assert f"e wait {first.experiment}" in refused.value.message
        job.report_result(wire.TrialResult(length=64, metric=0.1, batches=64))
    assert first.view().state == "COMPLETED"
    begun = [people.create_experiment(spec("random", max_trials=1, **each)) for each in (by_trial, by_uuid)]
    assert [each.state for each in begun] == ["ACTIVE", "ACTIVE"]
    people.change(first.experiment, wire.ExperimentChange(kept=wire.CheckpointsKept(trial_best=0, trial_latest=0)))

    def states():
        return [people.checkpoint(report.uuid).state for report in reports]

    until(lambda: states()[0] == "DELETED", lambda: f"{states()}")
    assert states() == ["DELETED", "COMPLETED"]
    people.act(first.experiment, wire.ExperimentAction(action="delete"))
    for each in begun:
        assert states() == ["DELETED", "COMPLETED"]
        people.act(each.experiment, wire.ExperimentAction(action="kill"))
    until(lambda: states() == ["DELETED", "DELETED"], lambda: f"{states()}")
    assert not any(each.name.startswith("000001") for each in tmp_path.iterdir())
    with pytest.raises(Refused) as refused:
        people.create_experiment(spec("random", source_checkpoint_uuid="unknown"))
    assert refused.value.code == "checkpoint-unknown"
    with pytest.raises(Refused) as refused:
        people.create_experiment(spec("random", source_trial_id=10**6))
    assert refused.value.code == "trial-unknown"


def test_code_is_kept_by_its_digest_or_not_at_all(people, server_on_each_store):
    content = b"a tarball" * 300_000
    digest = hashlib.sha256(content).hexdigest()
    if server_on_each_store.store.startswith("postgresql"):
        with pytest.raises(Refused) as refused:
            people.upload_code(digest, content)
        assert refused.value.code == "code-no-folder"
        return
    for name, code in ((hashlib.sha256(b"other").hexdigest(), "code-digest"), ("x", "parameter-invalid")):
        with pytest.raises(Refused) as refused:
            people.upload_code(name, content)
        assert refused.value.code == code
    people.upload_code(digest, content)
    people.upload_code(digest, content)
    assert people.code(digest) == content
    folder = Path(f"{server_on_each_store.store}.code")
    [path] = folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
