"""What a script learns about its job: nothing outside one, and inside one what the job file says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import everstep
from everstep import env
from everstep.checkpoint import index
from everstep.core.cluster_info import ClusterInfo, experiment_config, get_cluster_info
from everstep.errors import UsageError
from lab.refused import refused


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The surroundings of a worker; its directory."""
    monkeypatch.setenv(env.COORDINATOR, "http://127.0.0.1:1")
    monkeypatch.setenv(env.JOB, "job-7")
    monkeypatch.setenv(env.HOME, str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def info() -> ClusterInfo:
    found = get_cluster_info()
    assert found is not None
    return found


def give(monkeypatch: pytest.MonkeyPatch, path: Path, text: str) -> None:
    path.write_text(text)
    monkeypatch.setenv(env.EXPERIMENT, str(path))


def test_outside_a_job_there_is_no_information(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(env.COORDINATOR, raising=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")

    assert everstep.get_cluster_info() is None


def test_the_job_files_hyperparameters_arrive(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"hyperparameters": {"lr": 0.1, "net": {"depth": 3}}, "reproducibility": {"experiment_seed": 9}}
    give(monkeypatch, job / "experiment.json", json.dumps(content))

    assert info().trial.hparams == {"lr": 0.1, "net": {"depth": 3}}
    assert info().trial.trial_seed == 9
    assert experiment_config() == content


def test_a_job_without_a_file_has_no_hyperparameters(job: Path) -> None:
    assert info().trial.hparams == {}
    assert info().trial.trial_seed == 0
    assert experiment_config() == {}


def test_the_job_names_itself(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUP_RANK", "2")

    assert info().task_id == info().allocation_id == info().trial.trial_id == info().trial.experiment_id == "job-7"
    assert info().container_rank == 2
    assert "job-7" in repr(info())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"a": ', "experiment-unreadable"),
        ("[1]", "experiment-not-an-object"),
        ('{"hyperparameters": 3}', "experiment-section-not-a-mapping"),
    ],
)
def test_a_broken_file_is_named(job: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: str) -> None:
    give(monkeypatch, job / "experiment.json", text)
    with refused(code, UsageError):
        _ = info().trial


def test_a_missing_file_is_named(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.EXPERIMENT, str(job / "none.json"))
    with refused("experiment-unreadable", UsageError):
        experiment_config()


def test_what_means_nothing_here_says_what_to_use_instead(job: Path) -> None:
    with pytest.raises(AttributeError, match=r"no 'slot_ids'.*\n.*HINT: use context.device"):
        _ = info().slot_ids
    with pytest.raises(AttributeError, match="no 'trail'"):
        _ = info().trail


def test_the_latest_checkpoint_is_that_of_this_job(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert info().latest_checkpoint is None
    with everstep.Checkpointer(job / "ckpt") as checkpointer:
        for step in (5, 10):
            checkpointer.save(step, {"weight": 1.0}, wait=True)
            index.record(index.checkpoint_uuid("ckpt", step), "ckpt", step)

    assert info().latest_checkpoint == index.checkpoint_uuid(job / "ckpt", 10)

    monkeypatch.setenv(env.JOB, "job-8")
    assert info().latest_checkpoint is None


def test_everstep_run_passes_the_file_on_to_its_workers(tmp_path: Path) -> None:
    (tmp_path / "experiment.json").write_text('{"hyperparameters": {"lr": 0.5}}')
    (tmp_path / "ask.py").write_text(
        "import everstep as det\ninfo = det.get_cluster_info()\nprint('lr', info.trial.hparams['lr'], info.task_id)\n"
    )
    outer = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
    outer[env.NURSERY] = "off"  # the script needs no torch
    told = {env.EXPERIMENT: str(tmp_path / "experiment.json"), "PYTHONPATH": str(Path(everstep.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-m", "everstep", "run", "--nproc-per-node", "1", "--job", "j1", "ask.py"],
        cwd=tmp_path,
        env=outer | told,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "lr 0.5 j1" in done.stdout


def test_a_trial_has_numbers_its_own_hyperparameters_and_the_checkpoint_that_it_begins_with(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, job / "experiment.json", json.dumps({"hyperparameters": {"lr": 0.5}}))
    uuid = "11111111-2222-3333-4444-555555555555"
    facts = {"experiment": 12, "trial": 7, "trial_id": 31, "seed": 123, "warm_start": uuid}
    monkeypatch.setenv(env.TRIAL, json.dumps(facts))

    trial = info().trial

    assert (trial.experiment_id, trial.trial_id, trial.trial_seed) == (12, 31, 123)
    assert trial.hparams == everstep.get_hparams() == {"lr": 0.5}
    assert info().latest_checkpoint == uuid


def test_outside_a_job_there_are_no_hyperparameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(env.EXPERIMENT, raising=False)
    assert everstep.get_hparams() == {}
