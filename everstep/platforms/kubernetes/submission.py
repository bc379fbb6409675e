"""Send a job's objects: all of them, or none is left. And take all of them away again."""

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
    """Returns when nothing of it is left. A later job of the same name is let be."""
    job = cluster.get("Job", names.coordinator)
    if job is not None and job["metadata"]["uid"] != natives["uid"]:
        return
    _remove(cluster, names, natives["objects"], natives["grace_s"], say)


def _make_room(cluster: Namespace, names: ObjectNames, say: Say) -> None:
    """One of the same name that is over makes place; one that runs is not ours to end."""
    job = cluster.get("Job", names.coordinator)
    if job is None:
        return
    status = job_status(job, cluster.find("Pod", names.selector()), [], now=time.time())
    if status.state not in OVER:
        raise UsageError(
            f"a job {names.job} is in namespace {cluster.namespace} already, {status.state}: {status.reason}",
            hint="give another name (--set name=…), or end that one (everstep cancel)",
        )
    say(f"an earlier job {names.job}, {status.state}, is removed from namespace {cluster.namespace}")
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
            raise UsageError(f"there is no namespace {cluster.namespace}", hint="kubectl create namespace …") from None
        if isinstance(error, Denied) and error.status == CONFLICT:
            raise UsageError(f"{kind} {name} is there already", hint="give another name: --set name=…") from None
        raise PermanentError(f"{kind} {name} was refused: {error.message}", hint=_way_out(kind)) from None


def _undo(cluster: Namespace, made: Sequence[Object], say: Say) -> None:
    for each in reversed(made):
        try:
            cluster.delete(each["kind"], each["metadata"]["name"])
        except EverstepError as error:
            say(f"{each['kind']} {each['metadata']['name']} is left behind: {error.message}")


def _way_out(kind: str) -> str | None:
    if kind in ("ServiceAccount", "Role", "RoleBinding"):
        return "platform.kubernetes.service_account names one that has the rights; mode: indexed needs none"
    return None


def _own(cluster: Namespace, made: Sequence[Object], owner: Object) -> None:
    """Whatever belongs to the coordinator's Job goes with it, whoever deletes it."""
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
    # The coordinator first: it would replace the workers. They are told while it still answers: leaving takes a moment.
    for kind, name in sorted(objects, key=lambda each: each[0] != "Job"):
        cluster.delete(kind, name)
    for pod in cluster.find("Pod", names.selector()):
        cluster.delete("Pod", pod["metadata"]["name"])
    deadline = time.monotonic() + grace_s + _END_S
    while pods := cluster.find("Pod", names.selector()):
        now = time.time()
        is_late = time.monotonic() > deadline
        for pod in pods:
            if is_late or is_out_of_reach(pod, now=now):
                say(f"{pod['metadata']['name']} did not end: its node is not heard of; it is taken off the list")
                cluster.delete("Pod", pod["metadata"]["name"], grace_s=0)
        time.sleep(_LOOK_S)
    _remove_tokens(cluster, names)
    while any(_is_going(cluster.get(kind, name)) for kind, name in objects) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def _remove_tokens(cluster: Namespace, names: ObjectNames) -> None:
    """Made by the coordinator: they would go a little later, when the cluster looks for what has lost its owner."""
    with suppress(Denied):
        for each in cluster.find("Secret", names.selector()):
            cluster.delete("Secret", each["metadata"]["name"])


def _is_going(each: Object | None) -> bool:
    """A claim is there until the cluster has seen that no pod uses it any more."""
    return each is not None and "deletionTimestamp" in each["metadata"]


def _is_job(each: Object) -> bool:
    return bool(each["kind"] == "Job")
