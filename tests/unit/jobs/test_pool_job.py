"""A job file as one trial in a pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep import wire
from everstep.errors import UsageError
from everstep.jobs import pool_job


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").touch()
    return tmp_path


def spec_of(folder: Path, **content: Any) -> wire.ExperimentSpec:
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump({"entrypoint": "train.py", "workdir": str(folder), **content}))
    return pool_job.prepare(pool_job.read(file)).spec


@pytest.mark.parametrize(
    ("content", "slots"),
    [
        ({}, (1, 1)),
        ({"nodes": "1:4"}, (1, 4)),
        ({"nodes": 2, "workers_per_node": 3}, (6, 6)),
        ({"nodes": 2, "resources": {"gpu": 4}}, (8, 8)),
        ({"workers_per_node": "auto", "resources": {"slots_per_trial": 5}}, (1, 5)),
        ({"nodes": 2, "workers_per_node": 2, "resources": {"min_slots": 1}}, (1, 4)),
    ],
)
def test_workers_become_slots(folder: Path, content: dict[str, Any], slots: tuple[int, int]) -> None:
    spec = spec_of(folder, **content)
    assert (spec.min_slots, spec.max_slots) == slots
    assert spec.num_micro_batches == slots[1]


def test_the_number_of_workers_must_be_known(folder: Path) -> None:
    with pytest.raises(UsageError) as refused:
        spec_of(folder, workers_per_node="gpu")
    assert refused.value.code == "pool-job-workers-not-counted"


def test_it_is_a_single_trial_with_what_the_file_says_of_its_share(folder: Path) -> None:
    resources = {"priority": 3, "weight": 2, "max_slots": 4, "pool": "gpus", "preemption_timeout": "2m"}
    spec = spec_of(folder, searcher="single", resources=resources, restarts=1)
    assert spec.searcher == {"name": "single", "metric": "loss"}
    assert spec.max_restarts == 1
    wanted = wire.Scheduling(pool="gpus", priority=3, weight=2.0, max_slots=4, preemption_timeout_s=120.0)
    assert spec.scheduling == wanted


def test_a_search_is_not_one_job(folder: Path) -> None:
    with pytest.raises(UsageError) as refused:
        spec_of(folder, searcher={"name": "random", "metric": "loss", "max_trials": 2, "max_length": {"batches": 3}})
    assert refused.value.code == "searcher-needs-experiment"
