"""What a job becomes on Kubernetes, compared with checked-in text; and what is decided of what a cluster says.

`python tests/platforms/kubernetes/test_render.py` rewrites the text."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.errors import UsageError
from everstep.job_file.load import load
from everstep.job_file.order import NodeOrder
from everstep.job_file.tree import dump
from everstep.platforms.base import SubmitRequest, Ticket
from everstep.platforms.kubernetes.facts import fleet_node, job_status
from everstep.platforms.kubernetes.fleet import Owner, pod_of, token_secret
from everstep.platforms.kubernetes.names import ObjectNames
from everstep.platforms.kubernetes.render import PART_BYTES, render
from everstep.platforms.kubernetes.security import shared_rbac
from everstep.storage.code_archive import Code
from lab.refused import refused

HERE = Path(__file__).parent / "expected"
RBAC = Path(__file__).parents[3] / "docs" / "guides" / "kubernetes-rbac.yaml"
OWNER = Owner(name="first-coordinator", uid="1-2-3")
JOBS = {
    "plain": "{name: first, entrypoint: train.py, image: me/train:1, nodes: 2, platform: kubernetes}",
    "rich": r"""
name: A Rich Job
entrypoint: [train.py, "two words", "$HOME", "it's"]
nodes: 1:4
image: me/train:1
env: {GREETING: "good $(DAY)\nday"}
secrets: {KEY: hunter2, WANDB: kubernetes:wandb/api-key}
resources: {cpu: 4, memory: 16Gi, gpu: 2, gpu_type: A100, shm: 8Gi, limits: {memory: 32Gi}}
coordinator: {image: me/everstep:1, resources: {cpu: 200m, memory: 1Gi, limits: {cpu: 1}}}
volumes: ["pvc:data:/data:ro", "nfs:server:/home:/home", "/scratch:/scratch"]
checkpoint: {uri: /data/checkpoints, grace: 2m}
labels: {team: vision, "no label": "at all!"}
platform:
  kubernetes:
    namespace: vision
    pull_policy: Always
    pull_secrets: [registry]
    service_account: everstep
    node_selector: {zone: a}
    tolerations: [{key: gpu, operator: Exists}, {key: node.kubernetes.io/not-ready, operator: Exists}]
    priority_class: low
    queue: research
    security: baseline
    store: pvc:mine
    raw: {metadata: {annotations: {note: here}}, spec: {containers: [{name: main, env: [{name: MORE, value: "1"}]}]}}
""",
    "indexed": "{name: first, entrypoint: train.py, image: me/train:1, nodes: 3, time_limit: 1h, "
    "platform: {kubernetes: {mode: indexed, store: node}}}",
}


def rendered(text: str, code: bytes = b"a tarball") -> SubmitRequest:
    ticket = Ticket(
        id="first-0102-030405-abcd",
        folder=Path("/work/runs/first"),
        workdir=Path("/work"),
        code=Code(sha256=hashlib.sha256(code).hexdigest(), data=code),
    )
    return render(load(text).job, ticket)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_becomes_these_objects(name: str) -> None:
    rendering = rendered(JOBS[name])
    assert rendering.text == (HERE / f"{name}.yaml").read_text()
    assert list(yaml.safe_load_all(rendering.text)) == list(rendering.objects)


def test_what_a_job_relaxes_is_said_and_no_secret_is() -> None:
    rendering = rendered(JOBS["rich"])
    assert rendering.notes == (
        "security: baseline: worker pods may run as root, if their image does",
        "volume /scratch: /scratch is a path of the nodes (hostPath), which the restricted level of pod security "
        "forbids: the namespace must allow it",
        "the values of Secret a-rich-job-secrets are filled in on submission",
        "dropped label no label=at all!: not a valid Kubernetes label",
    )
    assert "hunter2" not in rendering.text
    assert rendered(JOBS["plain"]).notes == ()


def test_pods_are_restricted_and_workers_have_no_token_of_the_cluster() -> None:
    for pod in (worker(), job_of("plain")["spec"]["template"]):
        (container,) = pod["spec"]["containers"]
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        kinds = {kind for volume in pod["spec"]["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {"emptyDir", "projected", "persistentVolumeClaim"}
    assert worker()["spec"]["automountServiceAccountToken"] is False
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in worker()["spec"]["volumes"]


def test_all_that_a_job_says_is_in_its_order() -> None:
    told = next(each for each in rendered(JOBS["rich"]).objects if each["metadata"]["name"] == "a-rich-job-order")
    order = NodeOrder.from_json(told["data"]["order.json"])
    assert (order.script, order.args) == ("train.py", ("two words", "$HOME", "it's"))
    assert order.env == {"GREETING": "good $(DAY)\nday"}


def test_large_code_travels_in_parts_that_sort() -> None:
    rendering = rendered(JOBS["plain"], bytes(PART_BYTES * 11 + 5))
    objects = rendering.objects
    keys = [key for each in objects for key in each.get("binaryData", {})]
    assert rendering.text.count("binaryData:") == 12
    assert keys == sorted(keys) and len(keys) == 12
    with refused("kubernetes-code-too-large"):
        rendered(JOBS["plain"], bytes(21 << 20))


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        ("{entrypoint: train.py, platform: kubernetes}", "image is missing"),
        (
            "{entrypoint: t.py, image: a, volumes: ['data:/data'], platform: kubernetes}",
            "a path of the nodes must be absolute",
        ),
        ("{entrypoint: t.py, image: a, volumes: ['s3://b:/data'], platform: kubernetes}", "cannot mount a URI"),
        ("{entrypoint: t.py, image: a, volumes: ['/d:/dev/shm'], platform: kubernetes}", "Everstep uses that path"),
        ("{entrypoint: t.py, image: a, secrets: {A: 'oci:x'}, platform: kubernetes}", "oci: is not supported"),
    ],
)
def test_what_cannot_be_is_said(job: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        rendered(job)


def test_the_account_that_an_admin_makes_is_the_documented_one() -> None:
    assert RBAC.read_text() == rbac_text()


# --- the coordinator's part ---


def test_a_worker_pod_has_its_number_its_owner_and_the_coordinators_token() -> None:
    secret = token_secret(ObjectNames("first"), "worker:abc\nuser:def\n", owner=OWNER)
    pod = pod_of(worker(), ObjectNames("first"), 7, owner=OWNER, secret=secret["metadata"]["name"])
    assert pod["metadata"]["name"] == "first-worker-7"
    assert pod["metadata"]["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "first-coordinator", "uid": "1-2-3"}
    ]
    (token,) = [each for each in pod["spec"]["containers"][0]["env"] if each["name"] == "EVERSTEP_TOKEN"]
    assert token["valueFrom"]["secretKeyRef"] == {"name": secret["metadata"]["name"], "key": "worker"}
    others = token_secret(ObjectNames("first"), "worker:xyz\n", owner=OWNER)
    assert others["metadata"]["name"] != secret["metadata"]["name"]


def test_who_is_evicted_preempted_or_on_a_lost_node_was_not_of_no_use() -> None:
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    assert not node(phase="Failed", reason="Evicted").was_of_no_use
    assert not node(phase="Failed", conditions=disrupted).was_of_no_use
    assert node(phase="Failed", containerStatuses=[ended(1)]).was_of_no_use
    assert node(phase="Failed", containerStatuses=[ended(1)]).reason == "first-worker-3: exit code 1"


def test_a_pod_that_is_being_deleted_is_leaving_and_one_that_nobody_ends_is_gone() -> None:
    leaving, gone = (node(deletionTimestamp=stamp, phase="Running") for stamp in (LATER, EARLIER))
    assert (leaving.is_leaving, leaving.is_over) == (True, False)
    assert (gone.is_leaving, gone.is_over, gone.is_lost) == (True, True, True)


@pytest.mark.parametrize(
    ("status", "pods", "state", "reason"),
    [
        ({}, [], "pending", "the coordinator's pod does not exist yet"),
        ({}, [{"phase": "Running"}], "running", "the coordinator runs"),
        (
            {},
            [
                {
                    "phase": "Pending",
                    "containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}}],
                }
            ],
            "pending",
            "the coordinator: ErrImagePull: no",
        ),
        (
            {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "x"}]},
            [
                {
                    "phase": "Failed",
                    "containerStatuses": [{"state": {"terminated": {"message": "a\neverstep: failed: b\n"}}}],
                }
            ],
            "failed",
            "b",
        ),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, [], "succeeded", "finished"),
    ],
)
def test_a_jobs_state_is_its_coordinators(status: Any, pods: list[Any], state: str, reason: str) -> None:
    job = {"metadata": {}, "spec": {}, "status": status}
    coordinators = [{"metadata": {"name": "c"}, "spec": {}, "status": each} for each in pods]
    found = job_status(job, coordinators, [], now=NOW)
    assert (found.state, found.reason) == (state, reason)


def test_a_job_that_is_not_there_was_canceled() -> None:
    assert job_status(None, [], [], now=NOW).state == "canceled"


NOW = 1_800_000_000.0
EARLIER, LATER = "2027-01-15T07:59:00Z", "2027-01-15T08:01:00Z"  # than that


def node(deletionTimestamp: str | None = None, containers: int = 0, **status: Any) -> Any:  # noqa: N803  as named there
    metadata = {"name": "first-worker-3", "labels": {"everstep.dev/number": "3"}, "creationTimestamp": EARLIER}
    if deletionTimestamp:
        metadata["deletionTimestamp"] = deletionTimestamp
    spec = {"containers": [{}] * containers}
    return fleet_node({"metadata": metadata, "spec": spec, "status": status}, now=NOW)


def ended(code: int) -> dict[str, Any]:
    return {"state": {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": "2027-01-15T07:59:30Z"}}}


def worker() -> dict[str, Any]:
    told = next(each for each in rendered(JOBS["plain"]).objects if each["metadata"]["name"] == "first-order")
    pod: dict[str, Any] = yaml.safe_load(told["data"]["worker.json"])
    return pod


def job_of(name: str) -> Any:
    return next(each for each in rendered(JOBS[name]).objects if each["kind"] == "Job")


def rbac_text() -> str:
    return "".join(f"---\n{dump(each)}" for each in shared_rbac("everstep"))


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for each in JOBS:
        (HERE / f"{each}.yaml").write_text(rendered(JOBS[each]).text)
    RBAC.write_text(rbac_text())


def test_a_pod_is_dead_only_if_its_kubelet_has_seen_each_container_end() -> None:
    unknown = ended(137)
    unknown["state"]["terminated"]["reason"] = "ContainerStatusUnknown"
    assert node(containers=1, phase="Failed", containerStatuses=[ended(1)]).is_dead
    assert not node(containers=1, phase="Running", containerStatuses=[ended(1)]).is_dead, "it may be started again"
    assert not node(containers=2, phase="Failed", containerStatuses=[ended(1)]).is_dead
    assert not node(containers=1, phase="Failed", containerStatuses=[unknown]).is_dead
    assert not node(containers=1, phase="Failed").is_dead, "its node was given up"
    assert not node(EARLIER, containers=1, phase="Failed", containerStatuses=[ended(1)]).is_dead, "out of reach"
