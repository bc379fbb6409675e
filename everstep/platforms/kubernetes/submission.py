"""Create a job's objects, all or none; and remove them."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from everstep.errors import EverstepError, PermanentError, UsageError
from everstep.job_file.platform_options import Kubernetes
from everstep.platforms.base import OVER, Say, SubmitRequest, Submitted
from everstep.platforms.kubernetes.cluster import CONFLICT, NOT_FOUND, Denied, Namespace, Object
from everstep.platforms.kubernetes.facts import is_out_of_reach, job_status
from everstep.platforms.kubernetes.names import ObjectNames
from everstep.platforms.kubernetes.pods import ALL_TOKENS, WORKER_TOKEN
from everstep.waiting import wait_until
from everstep.wire.tokens import new_tokens, only_for_workers

_LOOK_S = 0.2
_END_S = 60.0  # more than a pod's grace, for all of a job to go


def submit(request: SubmitRequest, secrets: Mapping[str, str], say: Say) -> Submitted:
    job = request.job
    options, names = job.platform.kubernetes or Kubernetes(), ObjectNames(job.slug)
    cluster = Namespace.open(context=options.context, namespace=options.namespace)
    _make_room(cluster, names, say)
    objects = [_filled(each, names, secrets) for each in request.objects]
    made: list[Object] = []
    try:
        _create_all(cluster, objects, made)
        owner = next(each for each in made if each["kind"] == "Job")
        _own(cluster, made, owner)
    except BaseException:  # Ctrl-C too: no record of the objects would exist
        _undo(cluster, made, say)
        raise
    say(f"{owner['metadata']['name']} is in namespace {cluster.namespace}")
    grace_s = max(each["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] for each in made if _is_job(each))
    return Submitted(
        job_id=f"{cluster.namespace}/{names.job}",
        runs=(
            (names.coordinator, f"{cluster.namespace}/{names.coordinator}"),
            *((names.worker(each), f"{cluster.namespace}/{names.worker(each)}") for each in range(job.nodes.max)),
        ),
        work_dir=f"{cluster.namespace}/{names.order}",
        natives={
            "context": options.context,
            "namespace": cluster.namespace,
            "name": names.job,
            "uid": owner["metadata"]["uid"],
            "mode": options.mode,
            "grace_s": max(grace_s, job.checkpoint.grace),
            "objects": [[each["kind"], each["metadata"]["name"]] for each in made],
        },
    )


def remove(cluster: Namespace, names: ObjectNames, natives: Mapping[str, Any], say: Say) -> None:
    """Return once nothing of it is left. A later job of the same name is left alone."""
    job = cluster.get("Job", names.coordinator)
    if job is not None and job["metadata"]["uid"] != natives["uid"]:
        return
    _remove(cluster, names, natives["objects"], natives["grace_s"], say)


def _make_room(cluster: Namespace, names: ObjectNames, say: Say) -> None:
    """Remove a finished job of the same name; refuse if it is running."""
    job = cluster.get("Job", names.coordinator)
    if job is None:
        return
    status = job_status(job, cluster.find("Pod", names.selector()), [], now=time.time())
    if status.state not in OVER:
        raise UsageError(
            f"namespace {cluster.namespace} already has a job {names.job}, {status.state}: {status.reason}",
            hint="choose another name (--set name=…), or cancel that job (everstep cancel)",
            code="kubernetes-job-exists",
        )
    say(f"removing an earlier job {names.job}, {status.state}, from namespace {cluster.namespace}")
    kinds = ("RoleBinding", "Role", "ServiceAccount", "PersistentVolumeClaim", "Secret", "ConfigMap", "Service")
    found = [[kind, each["metadata"]["name"]] for kind in kinds for each in cluster.find(kind, names.selector())]
    _remove(cluster, names, [*found, ["Job", names.coordinator], ["Job", names.workers]], 0.0, say)


def _create_all(cluster: Namespace, objects: Sequence[Object], made: list[Object]) -> None:
    try:
        for each in objects:
            made.append({"kind": each["kind"], **cluster.create(each)})
    except EverstepError as error:
        kind, name = objects[len(made)]["kind"], objects[len(made)]["metadata"]["name"]
        if isinstance(error, Denied) and error.status == NOT_FOUND:
            raise UsageError(
                f"namespace {cluster.namespace} does not exist",
                hint="kubectl create namespace …",
                code="kubernetes-namespace-missing",
            ) from None
        if isinstance(error, Denied) and error.status == CONFLICT:
            raise UsageError(
                f"{kind} {name} already exists",
                hint="choose another name: --set name=…",
                code="kubernetes-object-exists",
            ) from None
        raise PermanentError(
            f"{kind} {name} was refused: {error.message}", hint=_way_out(kind), code="kubernetes-object-refused"
        ) from None


def _undo(cluster: Namespace, made: Sequence[Object], say: Say) -> None:
    for each in reversed(made):
        try:
            cluster.delete(each["kind"], each["metadata"]["name"])
        except EverstepError as error:
            say(f"{each['kind']} {each['metadata']['name']} was left behind: {error.message}")


def _way_out(kind: str) -> str | None:
    if kind in ("ServiceAccount", "Role", "RoleBinding"):
        return "platform.kubernetes.service_account names one that has the rights; mode: indexed needs none"
    return None


def _own(cluster: Namespace, made: Sequence[Object], owner: Object) -> None:
    """Objects owned by the coordinator's Job are deleted with it, however it is deleted."""
    reference = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    for each in made:
        if each is not owner:
            cluster.patch(each["kind"], each["metadata"]["name"], {"metadata": {"ownerReferences": [reference]}})


def _filled(each: Object, names: ObjectNames, secrets: Mapping[str, str]) -> Object:
    if each["kind"] != "Secret":
        return each
    values = dict(secrets)
    if each["metadata"]["name"] == names.token:
        tokens = new_tokens()
        values = {WORKER_TOKEN: only_for_workers(tokens), ALL_TOKENS: tokens}
    return {**each, "data": {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}}


def _remove(cluster: Namespace, names: ObjectNames, objects: Sequence[Sequence[str]], grace_s: float, say: Say) -> None:
    # The coordinator first: it would replace the workers. Delete them while it still answers: leaving takes a moment.
    for kind, name in sorted(objects, key=lambda each: each[0] != "Job"):
        cluster.delete(kind, name)
    for pod in cluster.find("Pod", names.selector()):
        cluster.delete("Pod", pod["metadata"]["name"])
    deadline = time.monotonic() + grace_s + _END_S

    def are_pods_gone() -> bool:
        pods = cluster.find("Pod", names.selector())
        now = time.time()
        is_late = time.monotonic() > deadline
        for pod in pods:
            if is_late or is_out_of_reach(pod, now=now):
                say(f"{pod['metadata']['name']} did not end; its node does not answer. Deleted by force")
                cluster.delete("Pod", pod["metadata"]["name"], grace_s=0)
        return not pods

    def are_objects_gone() -> bool:
        return not any(_is_going(cluster.get(kind, name)) for kind, name in objects)

    wait_until(are_pods_gone, grace_s + 2 * _END_S, "all pods to end", say=say, pause_s=_LOOK_S)
    _remove_tokens(cluster, names)
    wait_until(are_objects_gone, deadline - time.monotonic(), "all objects to go", say=say, pause_s=_LOOK_S)


def _remove_tokens(cluster: Namespace, names: ObjectNames) -> None:
    """The coordinator made them. The cluster would delete them later, as objects without an owner."""
    with suppress(Denied):
        for each in cluster.find("Secret", names.selector()):
            cluster.delete("Secret", each["metadata"]["name"])


def _is_going(each: Object | None) -> bool:
    """A claim exists until the cluster notices that no pod uses it."""
    return each is not None and "deletionTimestamp" in each["metadata"]


def _is_job(each: Object) -> bool:
    return bool(each["kind"] == "Job")
