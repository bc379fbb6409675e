"""Kubernetes: a coordinator as a Job of one pod, which makes the worker pods; or, with `mode: indexed`, an Indexed Job.

Pure functions build the objects (render); here they are created, all or none, inspected, and removed. All calls go
through the official client, which only `cluster` imports."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from everstep.errors import EverstepError, PermanentError, UsageError
from everstep.job_file.platform_options import Kubernetes
from everstep.job_file.schema import Job
from everstep.platforms.base import OVER, JobRecord, JobStatus, LogLine, Say, SubmitRequest, Submitted, Ticket
from everstep.platforms.kubernetes.cluster import CONFLICT, NOT_FOUND, Denied, Namespace, Object
from everstep.platforms.kubernetes.facts import is_out_of_reach, job_status, node_status
from everstep.platforms.kubernetes.follow import followed, logs_of
from everstep.platforms.kubernetes.forward import forwarded
from everstep.platforms.kubernetes.names import ALL_TOKENS, COORDINATOR, NODES, PORT, WORKER, WORKER_TOKEN, ObjectNames
from everstep.platforms.kubernetes.render import render
from everstep.waiting import wait_until
from everstep.wire.tokens import new_tokens, only_for_workers

_LOOK_S = 0.2
_ANSWER_S = 10.0
_STOPPED_S = 15.0  # for all to hear that the job was stopped, and to end
_END_S = 60.0  # more than a pod's grace, for all of a job to go


class KubernetesPlatform:
    name = "kubernetes"
    ships_code = True

    def detect(self) -> str | None:
        try:
            Namespace.open().version()
        except (EverstepError, OSError) as error:
            return str(error)
        return None

    def render(self, job: Job, ticket: Ticket) -> SubmitRequest:
        return render(job, ticket)

    def submit(self, request: SubmitRequest, secrets: Mapping[str, str], say: Say) -> Submitted:
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
        pods = [each["spec"]["template"]["spec"] for each in made if each["kind"] == "Job"]
        grace_s = max(each["terminationGracePeriodSeconds"] for each in pods)
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

    def status(self, record: JobRecord) -> JobStatus:
        cluster, names = _cluster(record), _names(record)
        job = cluster.get("Job", names.coordinator)
        if job is not None and job["metadata"]["uid"] != record.natives["uid"]:
            job = None  # a later one of the same name
        workers = cluster.find("Pod", names.selector(WORKER)) if job is not None else []
        return job_status(job, _coordinators(cluster, names), workers, now=time.time())

    def logs(self, record: JobRecord, *, follow: bool) -> Iterator[LogLine]:
        cluster, names = _cluster(record), _names(record)

        def pods() -> list[Object]:
            return sorted(cluster.find("Pod", names.selector()), key=_age)

        if not follow:
            return logs_of(cluster, pods)
        return followed(cluster, pods, is_over=lambda: self.status(record).is_over)

    def scale(self, record: JobRecord, num_nodes: int, say: Say) -> None:
        if record.natives["mode"] == "indexed":
            message = "a job of mode: indexed has a fixed size"
            raise UsageError(message, hint="mode: elastic grows and shrinks", code="kubernetes-indexed-cannot-scale")
        change = {"metadata": {"annotations": {NODES: str(num_nodes)}}}
        _cluster(record).patch("Job", _names(record).coordinator, change)

    def cancel(self, record: JobRecord, say: Say) -> None:
        """Through the coordinator, if it is running: without it, workers would wait for their whole grace."""
        cluster, names = _cluster(record), _names(record)
        with suppress(EverstepError), self.coordinator(record) as found:
            if found is not None:
                _stop(*found, record.id)
                _await_end(cluster, names)
        job = cluster.get("Job", names.coordinator)
        if job is None or job["metadata"]["uid"] == record.natives["uid"]:  # else a later one of the same name
            _remove(cluster, names, record.natives["objects"], record.natives["grace_s"], say)

    @contextmanager
    def coordinator(self, record: JobRecord) -> Iterator[tuple[str, str] | None]:
        cluster, names = _cluster(record), _names(record)
        running = [each for each in _coordinators(cluster, names) if each.get("status", {}).get("phase") == "Running"]
        token = _token(cluster, names) if running else None
        if token is None:
            yield None
            return
        with forwarded(cluster, running[-1]["metadata"]["name"], PORT) as port:
            yield f"http://127.0.0.1:{port}", token

    def record_folder(self, record: JobRecord) -> None:
        return None  # it is only beside the checkpoints: the pod's folder ends with it


# --- creating and removing ------------------------------------------------------------------------


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
            message = f"namespace {cluster.namespace} does not exist"
            raise UsageError(message, hint="kubectl create namespace …", code="kubernetes-namespace-missing") from None
        if isinstance(error, Denied) and error.status == CONFLICT:
            hint = "choose another name: --set name=…"
            raise UsageError(f"{kind} {name} already exists", hint=hint, code="kubernetes-object-exists") from None
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


# --- looking --------------------------------------------------------------------------------------


def _stop(url: str, token: str, job_id: str) -> None:
    from everstep.client.calls import Coordinator
    from everstep.wire import Stop

    with Coordinator(url, token, job_id, answer_s=_ANSWER_S) as coordinator:
        coordinator.stop(Stop(reason="canceled"))


def _await_end(cluster: Namespace, names: ObjectNames) -> None:
    def is_over() -> bool:
        now = time.time()
        states = [node_status(each, now=now).state for each in cluster.find("Pod", names.selector())]
        return all(state not in ("pending", "running") for state in states)

    wait_until(is_over, _STOPPED_S, "all pods to end", pause_s=_LOOK_S)


def _cluster(record: JobRecord) -> Namespace:
    return Namespace.open(context=record.natives["context"], namespace=record.natives["namespace"])


def _names(record: JobRecord) -> ObjectNames:
    return ObjectNames(record.natives["name"])


def _age(pod: Object) -> tuple[Any, ...]:
    metadata = pod["metadata"]
    return (metadata["labels"].get("app.kubernetes.io/component") != COORDINATOR, metadata["creationTimestamp"])


def _coordinators(cluster: Namespace, names: ObjectNames) -> list[Object]:
    return sorted(cluster.find("Pod", names.selector(COORDINATOR)), key=_age)


def _token(cluster: Namespace, names: ObjectNames) -> str | None:
    """Of the newest coordinator that made one."""
    secrets = [
        each
        for each in cluster.find("Secret", names.selector())
        if each["metadata"]["name"].startswith(names.token) and ALL_TOKENS in each.get("data", {})
    ]
    if not secrets:
        return None
    newest = max(secrets, key=lambda each: each["metadata"]["creationTimestamp"])
    return base64.b64decode(newest["data"][ALL_TOKENS]).decode()
