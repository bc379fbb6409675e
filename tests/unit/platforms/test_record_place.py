"""Where the coordinator of a job leaves its record, and what it gets for that: a volume, or the keys of a bucket."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from everstep.job_file.load import load
from everstep.job_file.order import NodeOrder
from everstep.platforms.base import Ticket
from everstep.platforms.compose_file import User, compose_file
from everstep.platforms.kubernetes.render import render
from everstep.storage.code_archive import Code

TICKET = Ticket(
    id="job-1",
    folder=Path("/work/runs/job-1"),
    workdir=Path("/work"),
    code=Code(sha256=hashlib.sha256(b"").hexdigest(), data=b""),
)


def composed(more: str) -> tuple[str, list[str]]:
    """Where the record goes, and what the coordinator mounts besides its folder."""
    job = load(f"{{entrypoint: train.py, image: me/train:1, platform: compose, {more}}}").job
    coordinator = compose_file(job, TICKET, User(uid=0, gid=0))["services"]["coordinator"]
    mounts = [each["target"] for each in coordinator["volumes"][1:]]
    return NodeOrder.from_json(coordinator["environment"]["EVERSTEP_ORDER"]).record_to, mounts


def on_kubernetes(more: str) -> tuple[str, list[str], list[str]]:
    """Where the record goes, what the coordinator mounts, and the names of its variables."""
    job = load(f"{{name: job, entrypoint: train.py, image: me/train:1, platform: kubernetes, {more}}}").job
    objects: Any = render(job, TICKET).objects
    (told,) = (each["data"]["order.json"] for each in objects if "order.json" in each.get("data", {}))
    (pod,) = (each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Job")
    (container,) = pod["containers"]
    mounts = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "checkpoints"]
    assert len(mounts) == sum(each["name"] == "checkpoints" for each in pod["volumes"])
    return json.loads(told).get("record_to", ""), mounts, [each["name"] for each in container["env"]]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("checkpoint: 's3://bucket/x'", ("s3://bucket/x", [])),
        ("checkpoint: /saved/x, volumes: ['/data:/saved']", ("/saved/x", ["/saved"])),
        ("checkpoint: /saved/x, volumes: ['/data:/saved:ro']", ("", [])),
        ("checkpoint: /saved/x", ("", [])),
        ("checkpoint: /saved/x, volumes: ['/data:/save']", ("", [])),
        ("checkpoint: saved", ("", [])),
        ("nodes: 1", ("", [])),
    ],
)
def test_on_compose_the_coordinator_mounts_the_volume_of_the_checkpoints(more: str, expected: object) -> None:
    assert composed(more) == expected


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("checkpoint: /saved/x, volumes: ['nfs:server:/home:/saved']", ("/saved/x", ["/saved"])),
        ("nodes: 2, checkpoint: /saved/x, volumes: ['pvc:data:/saved']", ("/saved/x", ["/saved"])),
        ("nodes: 1, checkpoint: /saved/x, volumes: ['pvc:data:/saved']", ("", [])),
        ("checkpoint: /saved/x", ("", [])),
    ],
)
def test_on_kubernetes_it_does_unless_the_claim_may_be_bound_to_another_node(more: str, expected: object) -> None:
    assert on_kubernetes(more)[:2] == expected


def test_on_kubernetes_the_coordinator_gets_the_keys_of_the_bucket_and_no_other_secret() -> None:
    secrets = "secrets: {AWS_SECRET_ACCESS_KEY: 'kubernetes:s3/key', WANDB_API_KEY: 'kubernetes:wandb/key'}"
    place, _, names = on_kubernetes(f"checkpoint: 's3://bucket/x', {secrets}")
    assert place == "s3://bucket/x"
    assert "AWS_SECRET_ACCESS_KEY" in names and "WANDB_API_KEY" not in names
    assert "AWS_SECRET_ACCESS_KEY" not in on_kubernetes(secrets)[2]
