"""A job as Kubernetes' own objects, in the order in which they can be made. Pure: no cluster, no client, no secrets."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

from everstep.errors import UsageError
from everstep.job_file.order import order_of
from everstep.job_file.platform_options import Kubernetes
from everstep.job_file.schema import Job
from everstep.job_file.tree import dump
from everstep.platforms.base import SubmitRequest, Ticket
from everstep.platforms.kubernetes.names import COORDINATOR, ID, PORT, WORKER, ObjectNames, is_label
from everstep.platforms.kubernetes.pods import ORDER_KEY, WORKER_KEY, coordinator_pod, worker_pod
from everstep.platforms.kubernetes.rbac import rbac
from everstep.platforms.kubernetes.security import relaxations
from everstep.platforms.secrets import refuse_foreign
from everstep.storage.code_archive import Code

PART_BYTES = 700 << 10  # a ConfigMap holds 1 MiB, and what is sent has a third more
MAX_CODE_BYTES = 20 << 20
_COORDINATOR_DEATHS = 100  # it may be lost as often as its node is; a failed job ends it itself
_FAILED_PODS = 6  # of an Indexed Job; preempted and evicted pods do not count
_DISRUPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}

Object = dict[str, Any]


def render(job: Job, ticket: Ticket) -> SubmitRequest:
    options = job.platform.kubernetes or Kubernetes()
    objects = _objects(job, ticket)
    text = "".join(f"---\n{_text(each)}" for each in objects)
    return SubmitRequest(job=job, ticket=ticket, text=text, objects=objects, notes=tuple(_notes(job, options)))


def _objects(job: Job, ticket: Ticket) -> list[Object]:
    _check(job, ticket.code)
    options, names = job.platform.kubernetes or Kubernetes(), ObjectNames(job.slug)
    parts = split(ticket.code.data) if ticket.code is not None else []
    objects = [
        *([] if options.service_account or options.mode == "indexed" else rbac(names)),
        *_claim(options, names),
        *([_secret(names.token, names)] if options.mode == "indexed" else []),
        *([_secret(names.secrets, names)] if any(each.kind != "kubernetes" for each in job.secrets.values()) else []),
        *(_code(part, number, len(parts), names) for number, part in enumerate(parts)),
        _order(job, options, names, ticket),
        _service(names.coordinator, names, COORDINATOR),
        *([_service(names.workers, names, WORKER, is_headless=True)] if options.mode == "indexed" else []),
        _coordinator_job(job, options, names, ticket, len(parts)),
        *([_indexed_job(job, options, names, ticket)] if options.mode == "indexed" else []),
    ]
    return [_placed(each, options, ticket.id) for each in objects]


def _text(each: Object) -> str:
    """YAML. A line of megabytes would take the YAML writer seconds, and needs no escaping."""
    long: Mapping[str, str] = each.get("binaryData", {})
    rest = dump({key: value for key, value in each.items() if key != "binaryData"})
    return rest + "".join(["binaryData:\n"] if long else []) + "".join(f"  {key}: {long[key]}\n" for key in long)


def split(data: bytes) -> list[bytes]:
    return [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]


def _check(job: Job, code: Code | None) -> None:
    refuse_foreign(job.secrets, platform="kubernetes", kinds=("kubernetes",))
    if not job.image:
        raise UsageError(
            "image is missing: a pod has no other Python",
            hint="image: NAME of one with Everstep and torch",
            code="kubernetes-image-missing",
        )
    if code is not None and len(code.data) > MAX_CODE_BYTES:
        raise UsageError(
            f"the code is {len(code.data) >> 20} MiB as a tarball; {MAX_CODE_BYTES >> 20} MiB is the limit",
            hint=f"list data in {job.ignore}, put it on a volume, or the code into the image",
            code="kubernetes-code-too-large",
        )


def _placed(each: Object, options: Kubernetes, job_id: str) -> Object:
    place = {"namespace": options.namespace} if options.namespace else {}
    metadata = each["metadata"]
    annotations = {**metadata.get("annotations", {}), ID: job_id}
    return {**each, "metadata": {"name": metadata["name"], **place, **metadata, "annotations": annotations}}


def _claim(options: Kubernetes, names: ObjectNames) -> list[Object]:
    if options.store == "node" or options.store.startswith("pvc:"):
        return []
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": options.store}}}
    metadata = {"name": names.store, "labels": names.labels()}
    return [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}]


def _secret(name: str, names: ObjectNames) -> Object:
    """Without its values, which are filled in on submission."""
    metadata = {"name": name, "labels": names.labels()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque"}


def _code(part: bytes, number: int, num_parts: int, names: ObjectNames) -> Object:
    digits = len(str(num_parts))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": names.code(number), "labels": names.labels()},
        "binaryData": {f"part-{number:0{digits}d}": base64.b64encode(part).decode()},
    }


def _order(job: Job, options: Kubernetes, names: ObjectNames, ticket: Ticket) -> Object:
    order = order_of(job, ticket.id, code=ticket.code.sha256 if ticket.code else "", workdir=job.workdir)
    told = {ORDER_KEY: order.to_json()}
    if options.mode == "elastic":
        pod = worker_pod(job, options, names, ticket.id, token=names.token)
        told[WORKER_KEY] = json.dumps(pod, indent=1, ensure_ascii=False)
    metadata = {"name": names.order, "labels": names.labels()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": told}


def _service(name: str, names: ObjectNames, component: str, *, is_headless: bool = False) -> Object:
    spec: Object = {"selector": names.labels(component), "ports": [{"name": "http", "port": PORT}]}
    if is_headless:
        spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": names.labels(component)}
    metadata = {"name": name, "labels": names.labels(component)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _coordinator_job(job: Job, options: Kubernetes, names: ObjectNames, ticket: Ticket, num_parts: int) -> Object:
    code = ticket.code.sha256 if ticket.code else ""
    pod = coordinator_pod(job, options, names, ticket.id, code=code, num_parts=num_parts)
    metadata: Object = {"name": names.coordinator, "labels": {**names.labels(COORDINATOR), **_queue(options)}}
    spec: Object = {"backoffLimit": _COORDINATOR_DEATHS, "template": pod}
    if options.queue:
        spec["suspend"] = True  # Kueue starts it when there is room
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _indexed_job(job: Job, options: Kubernetes, names: ObjectNames, ticket: Ticket) -> Object:
    pod = worker_pod(job, options, names, ticket.id, token=names.token)
    pod["spec"]["subdomain"] = names.workers
    spec: Object = {
        "completionMode": "Indexed",
        "completions": job.nodes.max,
        "parallelism": job.nodes.max,
        "backoffLimit": _FAILED_PODS,
        "podFailurePolicy": {"rules": [_DISRUPTED]},
        "template": pod,
    }
    if options.queue:
        spec["suspend"] = True
    if job.time_limit is not None:
        spec["activeDeadlineSeconds"] = math.ceil(job.time_limit)
    metadata = {"name": names.workers, "labels": {**names.labels(WORKER), **_queue(options)}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _queue(options: Kubernetes) -> Mapping[str, str]:
    return {"kueue.x-k8s.io/queue-name": options.queue} if options.queue else {}


def _notes(job: Job, options: Kubernetes) -> list[str]:
    names = ObjectNames(job.slug)
    notes = list(relaxations(job, options.security))
    if options.store == "node":
        notes.append("store: node: if the coordinator's pod is lost, the job starts again from its last checkpoint")
    if options.mode == "indexed":
        notes.append(
            f"mode: indexed: always {job.nodes.max} nodes; needs Kubernetes 1.26 or newer; "
            f"the values of Secret {names.token} are generated on submission"
        )
    if any(each.kind != "kubernetes" for each in job.secrets.values()):
        notes.append(f"the values of Secret {names.secrets} are filled in on submission")
    for key, value in job.labels.items():
        if not is_label(key, value):
            notes.append(f"dropped label {key}={value}: not a valid Kubernetes label")
    return notes
