"""A job as a Compose file, compared with one that was looked at."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from everstep.job_file.schema import Job
from everstep.job_file.tree import dump
from everstep.platforms.base import Ticket
from everstep.platforms.compose import ComposePlatform, all_ended
from everstep.platforms.compose_file import User, compose_file, notes_on
from everstep.platforms.docker import Container
from everstep.storage.code_archive import Code
from lab.refused import refused

RENDERED = Path(__file__).parent / "rendered"
OVERLAY = {"node": {"cap_add": ["SYS_PTRACE"]}, "node-1": {"privileged": True}}
USER = User(uid=1000, gid=100)
TICKET = Ticket(
    id="mnist-1",
    folder=Path("/home/me/mnist/runs/mnist-1"),
    workdir=Path("/home/me/mnist"),
    code=Code(sha256="ab" * 32, data=b""),
)


def job(**keys: Any) -> Job:
    return Job.model_validate({"entrypoint": "train.py", "image": "mnist:1", **keys})


def services(described: Job, user: User = USER) -> dict[str, Any]:
    found: dict[str, Any] = compose_file(described, TICKET, user)["services"]
    return found


def test_the_file_is_the_one_that_was_looked_at() -> None:
    described = job(
        name="mnist",
        args=["--title", "it costs $5", "two\nlines"],
        nodes="1:2",
        secrets={"KEY": "env:KEY"},
        resources={"cpu": 2, "memory": "4Gi", "limits": {"memory": "8Gi"}, "gpu": 2, "shm": "1Gi"},
        volumes=["./data:/data:ro", "nfs:server:/export:/shared", "emptydir:/scratch"],
        labels={"team": "vision"},
        coordinator={"resources": {"memory": "512Mi"}},
        platform={
            "compose": {"raw": {"services": {"node": {"cap_add": ["SYS_PTRACE"]}, "node-1": {"privileged": True}}}}
        },
    )
    text = dump(compose_file(described, TICKET, USER))
    expected = RENDERED / "compose.yaml"
    if "EVERSTEP_RENDER" in os.environ:
        expected.write_text(text)
    assert text == expected.read_text()


def test_files_of_root_are_roots() -> None:
    node = services(job(), User(uid=0, gid=0))["node-0"]
    assert "user" not in node
    assert "HOME" not in node["environment"]


def test_an_image_that_is_built_needs_no_name() -> None:
    assert services(job(image="", build={}))["node-0"]["image"] == "train:latest"
    with refused("compose-image-missing"):
        services(job(image=""))


@pytest.mark.parametrize("source", ["pvc:claim", "s3://bucket/data"])
def test_what_compose_cannot_mount_is_refused(source: str) -> None:
    with refused("compose-volume-unsupported"):
        services(job(volumes=[{"source": source, "target": "/data"}]))


def test_secrets_of_other_platforms_are_refused() -> None:
    with refused("secret-kind-unsupported"):
        ComposePlatform().render(job(secrets={"KEY": "kubernetes:a/b"}), TICKET)


def test_checkpoints_that_would_be_lost_are_told() -> None:
    assert "not in a volume" in notes_on(job(checkpoint="/ckpt"))[0]
    assert notes_on(job(checkpoint="/shared/ckpt", volumes=["/mnt:/shared"])) == ()
    assert notes_on(job(checkpoint="s3://bucket/ckpt")) == ()


def test_a_node_lost_on_the_way_does_not_make_a_job_fail_that_the_others_finish() -> None:
    def node(name: str, exit_code: int, ended_at: float, state: str = "exited") -> Container:
        return Container(
            id=name, name=name, service=name, state=state, exit_code=exit_code, started_at="", ended_at=ended_at
        )

    lost, finished = node("node-0", 137, 100.0), node("node-1", 0, 500.0)
    assert all_ended([lost, node("node-1", 0, 0.0, "running")], now=501.0) == ""
    assert all_ended([lost, finished], now=501.0) == ""  # its coordinator is about to say how it went
    assert "node-0 with exit code 137" in all_ended([lost, finished], now=600.0)
