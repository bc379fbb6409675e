"""A job as Kubernetes' own objects, in the order in which they can be made; among them, the two kinds of pods: one
coordinator, and the workers. Pure: no cluster, no client, no secrets."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

from everstep import env
from everstep.errors import UsageError
from everstep.job_file.order import checkpoint_volume, in_containers, is_for_storage, order_of
from everstep.job_file.platform_options import Kubernetes
from everstep.job_file.schema import Job, NodeResources
from everstep.job_file.tree import dump
from everstep.platforms.base import SubmitRequest, Ticket, refuse_foreign
from everstep.platforms.kubernetes.names import (
    ALL_TOKENS,
    COORDINATOR,
    ID,
    MAIN,
    NUMBER,
    PORT,
    TEMPLATE,
    WORKER,
    WORKER_TOKEN,
    ObjectNames,
    is_label,
)
from everstep.platforms.kubernetes.security import container_security, pod_security, rbac, relaxations
from everstep.platforms.kubernetes.volumes import WORK, pod_volumes, record_volume
from everstep.platforms.raw_overlay import given, lay_over
from everstep.storage.code_archive import Code

PART_BYTES = 700 << 10  # a ConfigMap holds 1 MiB, and what is sent has a third more
MAX_CODE_BYTES = 20 << 20
_COORDINATOR_DEATHS = 100  # it may be lost as often as its node is; a failed job ends it itself
_FAILED_PODS = 6  # of an Indexed Job; preempted and evicted pods do not count
_DISRUPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
_STORE = "/var/lib/everstep"  # what coordinators keep: store, token, code of each job
_PARTS = "/etc/everstep/code"  # the code's tarball, in parts that sort
_ORDER_KEY, _WORKER_KEY = "order.json", "worker.json"
_SILENT_NODE_S = 30  # a pod stays this long on a node that does not answer
_LEAVE_S = 10  # more than the agent's own grace
_GPU, _GPU_TYPE = "nvidia.com/gpu", "nvidia.com/gpu.product"
_LAST_WORDS = {"terminationMessagePolicy": "FallbackToLogsOnError"}
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"

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
        message = "image is missing: a pod has no other Python"
        raise UsageError(message, hint="image: NAME of one with Everstep and torch", code="kubernetes-image-missing")
    if code is not None and len(code.data) > MAX_CODE_BYTES:
        raise UsageError(
            f"the code is {len(code.data) >> 20} MiB as a tarball; {MAX_CODE_BYTES >> 20} MiB is the limit",
            hint=f"list data in {job.ignore}, put it on a volume, or the code into the image",
            code="kubernetes-code-too-large",
        )


def _placed(each: Object, options: Kubernetes, job_id: str) -> Object:
    place, metadata = given({"namespace": options.namespace}), each["metadata"]
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
    order = in_containers(order, checkpoint_volume(job) if record_volume(job)[0] else None)
    told = {_ORDER_KEY: order.to_json()}
    if options.mode == "elastic":
        pod = _worker_pod(job, options, names, ticket.id, token=names.token)
        told[_WORKER_KEY] = json.dumps(pod, indent=1, ensure_ascii=False)
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
    pod = _coordinator_pod(job, options, names, ticket.id, code=code, num_parts=num_parts)
    metadata: Object = {"name": names.coordinator, "labels": {**names.labels(COORDINATOR), **_queue(options)}}
    spec: Object = {"backoffLimit": _COORDINATOR_DEATHS, "template": pod}
    if options.queue:
        spec["suspend"] = True  # Kueue starts it when there is room
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _indexed_job(job: Job, options: Kubernetes, names: ObjectNames, ticket: Ticket) -> Object:
    pod = _worker_pod(job, options, names, ticket.id, token=names.token)
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


# --- pods -----------------------------------------------------------------------------------------


def _worker_pod(job: Job, options: Kubernetes, names: ObjectNames, job_id: str, *, token: str) -> dict[str, Any]:
    """As the coordinator, or an Indexed Job, makes it: all but its name and its number. `token`: the Secret's name."""
    environment = [
        _from_order(names, env.ORDER, _ORDER_KEY),
        {"name": env.COORDINATOR, "value": names.url},
        _from_secret(env.TOKEN, token, WORKER_TOKEN),
        *_secrets(job, names),
        _from_field("EVERSTEP_POD", "metadata.name"),
    ]
    words = ["everstep", "node", "--name", "$(EVERSTEP_POD)", "--log-dir", f"{WORK}/runs"]
    if options.mode == "indexed":
        environment.append(_from_field("PET_NODE_RANK", _INDEX))
    return _node_pod(job, options, names, job_id, words=words, environment=environment)


def pool_pod(job: Job, names: ObjectNames, number: int, command: str, *, token: str) -> Object:
    """A node of a pool. `token`: the name of the Secret with the workers' token."""
    options = job.platform.kubernetes or Kubernetes()
    environment = [{"name": env.IMAGE, "value": job.image}, _from_secret(env.TOKEN, token, WORKER_TOKEN)]
    pod = _node_pod(job, options, names, names.job, words=["sh", "-c", _literal(command)], environment=environment)
    pod["metadata"] |= {"name": names.worker(number), "labels": {**pod["metadata"]["labels"], NUMBER: str(number)}}
    if job.time_limit is not None:
        pod["spec"]["activeDeadlineSeconds"] = math.ceil(job.time_limit)
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def _node_pod(
    job: Job,
    options: Kubernetes,
    names: ObjectNames,
    job_id: str,
    *,
    words: list[str],
    environment: list[dict[str, Any]],
) -> dict[str, Any]:
    volumes, mounts = pod_volumes(job)
    variables = [{"name": name, "value": _literal(value)} for name, value in job.env.items()]
    container = {
        "name": MAIN,
        "image": job.image,
        **given({"imagePullPolicy": options.pull_policy}),
        "command": words,
        "workingDir": WORK,
        "env": [{"name": "HOME", "value": WORK}, *variables, *environment],
        "resources": _resources(job.resources, job.resources.gpu),
        "securityContext": container_security(options.security),
        "volumeMounts": mounts,
        **_LAST_WORDS,
    }
    selector = {**options.node_selector, **given({_GPU_TYPE: job.resources.gpu_type})}
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(job.checkpoint.grace) + _LEAVE_S,
        "securityContext": pod_security(options.security),
        "affinity": _apart(names),
        "tolerations": _tolerations(options),
        **given({"nodeSelector": selector, "priorityClassName": options.priority_class}),
        **_pull_secrets(options),
        "containers": [container],
        "volumes": volumes,
    }
    labels = {**_users(job), **names.labels(WORKER), **_queue(options)}
    pod = {"metadata": {"labels": labels, "annotations": {ID: job_id}}, "spec": spec}
    laid: dict[str, Any] = lay_over(pod, options.raw)
    return laid


def _coordinator_pod(
    job: Job, options: Kubernetes, names: ObjectNames, job_id: str, *, code: str, num_parts: int
) -> dict[str, Any]:
    """Indexed or not: the one makes worker pods, the other only waits for them."""
    is_elastic = options.mode == "elastic"
    environment = [{"name": "HOME", "value": WORK}, _from_order(names, env.ORDER, _ORDER_KEY)]
    if is_elastic:
        environment += [_from_order(names, TEMPLATE, _WORKER_KEY)]
    else:
        environment += [_from_secret(env.TOKEN, names.token, ALL_TOKENS)]
    if "://" in job.checkpoint.uri:  # the record goes there
        environment += [each for each in _secrets(job, names) if is_for_storage(each["name"])]
    volumes, mounts = record_volume(job)
    container = {
        "name": MAIN,
        "image": job.coordinator.image or job.image,
        **given({"imagePullPolicy": options.pull_policy}),
        "command": ["sh", "-c", _coordinate(is_elastic, job_id, code)],
        "workingDir": WORK,
        "env": environment,
        "ports": [{"containerPort": PORT, "name": "http"}],
        "resources": _resources(job.coordinator.resources) or {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "securityContext": container_security("restricted"),
        "volumeMounts": [
            {"name": "work", "mountPath": WORK},
            {"name": "store", "mountPath": _STORE},
            *([{"name": "code", "mountPath": _PARTS, "readOnly": True}] if num_parts else []),
            *mounts,
        ],
        **_LAST_WORDS,
    }
    spec = {
        "restartPolicy": "Never",
        "hostname": names.coordinator,
        **({"serviceAccountName": options.service_account or names.coordinator} if is_elastic else {}),
        "automountServiceAccountToken": is_elastic,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _LEAVE_S,
        "securityContext": pod_security("restricted"),
        "tolerations": _tolerations(options),
        **_pull_secrets(options),
        "containers": [container],
        "volumes": [
            {"name": "work", "emptyDir": {}},
            {"name": "store", **_store(options, names)},
            *([{"name": "code", "projected": {"sources": _parts(names, num_parts)}}] if num_parts else []),
            *volumes,
        ],
    }
    labels = {**_users(job), **names.labels(COORDINATOR)}
    pod = {"metadata": {"labels": labels, "annotations": {ID: job_id}}, "spec": spec}
    laid: dict[str, Any] = lay_over(pod, options.coordinator_raw)
    return laid


def _literal(value: str) -> str:
    """Escaped: Kubernetes would expand $(NAME)."""
    return value.replace("$(", "$$(")


def _coordinate(is_elastic: bool, job_id: str, code: str) -> str:
    """The folder may be an earlier coordinator's, complete; other jobs may have theirs beside it."""
    folder = f"{_STORE}/{job_id}"
    steps = ["umask 077", f"mkdir -p {folder}"]
    if code:
        steps.append(f"cat {_PARTS}/* >{folder}/code.part && mv {folder}/code.part {folder}/code-{code}.tar.gz")
    if not is_elastic:
        steps.append(f'printf "%s\\n" "${env.TOKEN}" >{folder}/token && unset {env.TOKEN}')
    fleet = "kubernetes" if is_elastic else "indexed"
    steps.append(f"exec everstep coordinate --folder {folder} --host 0.0.0.0 --port {PORT} --fleet {fleet}")
    return " && ".join(steps)


def _store(options: Kubernetes, names: ObjectNames) -> dict[str, Any]:
    if options.store == "node":
        return {"emptyDir": {}}
    claim = options.store.removeprefix("pvc:") if options.store.startswith("pvc:") else names.store
    return {"persistentVolumeClaim": {"claimName": claim}}


def _parts(names: ObjectNames, num_parts: int) -> list[dict[str, Any]]:
    return [{"configMap": {"name": names.code(part)}} for part in range(num_parts)]


def _resources(asked: NodeResources, num_gpus: int = 0) -> dict[str, Any]:
    shown = asked.model_dump(mode="json")
    requests = {name: str(shown[name]) for name in ("cpu", "memory") if shown[name] is not None}
    limits = {name: str(shown["limits"][name]) for name in ("cpu", "memory") if shown["limits"][name] is not None}
    if num_gpus:
        limits[_GPU] = str(num_gpus)
    return given({"requests": requests, "limits": limits})


def _secrets(job: Job, names: ObjectNames) -> list[dict[str, Any]]:
    found = []
    for name, secret in job.secrets.items():
        if secret.kind == "kubernetes":
            theirs, _, key = secret.held.partition("/")
            found.append(_from_secret(name, theirs, key))
        else:
            found.append(_from_secret(name, names.secrets, name))
    return found


def _apart(names: ObjectNames) -> dict[str, Any]:
    """On separate machines if there are enough: the survivors of a machine's loss hold the state."""
    term = {"labelSelector": {"matchLabels": names.labels(WORKER)}, "topologyKey": "kubernetes.io/hostname"}
    wish = {"weight": 100, "podAffinityTerm": term}
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}


def _tolerations(options: Kubernetes) -> list[dict[str, Any]]:
    """Kubernetes waits five minutes for a silent node; the job has continued without it long before."""
    kept: list[dict[str, Any]] = [dict(each) for each in options.tolerations]
    for condition in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{condition}"
        if not any(each.get("key") == key for each in kept):
            silent = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _SILENT_NODE_S}
            kept.append(silent)
    return kept


def _users(job: Job) -> dict[str, str]:
    return {key: value for key, value in job.labels.items() if is_label(key, value)}


def _queue(options: Kubernetes) -> dict[str, str]:
    return given({"kueue.x-k8s.io/queue-name": options.queue})


def _pull_secrets(options: Kubernetes) -> dict[str, Any]:
    return given({"imagePullSecrets": [{"name": name} for name in options.pull_secrets]})


def _from_order(names: ObjectNames, variable: str, key: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"configMapKeyRef": {"name": names.order, "key": key}}}


def _from_secret(variable: str, secret: str, key: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _from_field(variable: str, path: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}
