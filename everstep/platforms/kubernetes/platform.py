"""Submit a job to a cluster, and report its status."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from everstep.errors import EverstepError, UsageError
from everstep.job_file.schema import Job
from everstep.platforms.base import JobStatus, LogLine, Say, SubmitRequest, Submitted, Ticket
from everstep.platforms.job_records import JobRecord
from everstep.platforms.kubernetes import submission
from everstep.platforms.kubernetes.cluster import Namespace, Object
from everstep.platforms.kubernetes.facts import job_status, node_status
from everstep.platforms.kubernetes.follow import followed, logs_of
from everstep.platforms.kubernetes.forward import forwarded
from everstep.platforms.kubernetes.names import COORDINATOR, NODES, PORT, WORKER, ObjectNames
from everstep.platforms.kubernetes.pods import ALL_TOKENS
from everstep.platforms.kubernetes.render import render
from everstep.waiting import wait_until

_LOOK_S = 0.2
_ANSWER_S = 10.0
_STOPPED_S = 15.0  # for all to hear that the job was stopped, and to end


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
        return submission.submit(request, secrets, say)

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
            raise UsageError(
                "a job of mode: indexed has a fixed size",
                hint="mode: elastic grows and shrinks",
                code="kubernetes-indexed-cannot-scale",
            )
        change = {"metadata": {"annotations": {NODES: str(num_nodes)}}}
        _cluster(record).patch("Job", _names(record).coordinator, change)

    def cancel(self, record: JobRecord, say: Say) -> None:
        """Through the coordinator, if it is running: without it, workers would wait for their whole grace."""
        cluster, names = _cluster(record), _names(record)
        with suppress(EverstepError), self.coordinator(record) as found:
            if found is not None:
                _stop(*found, record.id)
                _await_end(cluster, names)
        submission.remove(cluster, names, record.natives, say)

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
