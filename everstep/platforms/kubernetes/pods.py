"""The two kinds of pods that a job has: one coordinator, and the workers. Pure."""

from __future__ import annotations

import math
from typing import Any

from everstep import env
from everstep.job_file.platform_options import Kubernetes
from everstep.job_file.schema import Job, NodeResources
from everstep.platforms.kubernetes.names import COORDINATOR, ID, MAIN, PORT, WORKER, ObjectNames, is_label
from everstep.platforms.kubernetes.security import container_security, pod_security
from everstep.platforms.kubernetes.volumes import WORK, pod_volumes
from everstep.platforms.raw_overlay import lay_over

STORE = "/var/lib/everstep"  # what coordinators keep: store, token, code of each job
PARTS = "/etc/everstep/code"  # the code's tarball, in parts that sort
ORDER_KEY, WORKER_KEY = "order.json", "worker.json"
WORKER_TOKEN, ALL_TOKENS = "worker", "token"  # keys of the Secret
TEMPLATE = "EVERSTEP_WORKER_POD"  # what a worker's pod looks like, for the coordinator
_SILENT_NODE_S = 30  # a pod stays this long on a node that does not answer
_LEAVE_S = 10  # more than the agent's own grace
_GPU, _GPU_TYPE = "nvidia.com/gpu", "nvidia.com/gpu.product"
_LAST_WORDS = {"terminationMessagePolicy": "FallbackToLogsOnError"}
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def worker_pod(job: Job, options: Kubernetes, names: ObjectNames, job_id: str, *, token: str) -> dict[str, Any]:
    """As the coordinator, or an Indexed Job, makes it: all but its name and its number. `token`: the Secret's name."""
    volumes, mounts = pod_volumes(job)
    environment = [
        {"name": "HOME", "value": WORK},
        *({"name": name, "value": literal(value)} for name, value in job.env.items()),
        _from_order(names, env.ORDER, ORDER_KEY),
        {"name": env.COORDINATOR, "value": names.url},
        _from_secret(env.TOKEN, token, WORKER_TOKEN),
        *_secrets(job, names),
        _from_field("EVERSTEP_POD", "metadata.name"),
    ]
    words = ["everstep", "node", "--name", "$(EVERSTEP_POD)", "--log-dir", f"{WORK}/runs"]
    if options.mode == "indexed":
        environment.append(_from_field("PET_NODE_RANK", _INDEX))
    container = {
        "name": MAIN,
        "image": job.image,
        **_pull(options),
        "command": words,
        "workingDir": WORK,
        "env": environment,
        "resources": _resources(job.resources, job.resources.gpu),
        "securityContext": container_security(options.security),
        "volumeMounts": mounts,
        **_LAST_WORDS,
    }
    selector = {**options.node_selector, **({_GPU_TYPE: job.resources.gpu_type} if job.resources.gpu_type else {})}
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(job.checkpoint.grace) + _LEAVE_S,
        "securityContext": pod_security(options.security),
        "affinity": _apart(names),
        "tolerations": _tolerations(options),
        **({"nodeSelector": selector} if selector else {}),
        **({"priorityClassName": options.priority_class} if options.priority_class else {}),
        **_pull_secrets(options),
        "containers": [container],
        "volumes": volumes,
    }
    labels = {**_users(job), **names.labels(WORKER), **_queue(options)}
    pod = {"metadata": {"labels": labels, "annotations": {ID: job_id}}, "spec": spec}
    laid: dict[str, Any] = lay_over(pod, options.raw)
    return laid


def coordinator_pod(
    job: Job, options: Kubernetes, names: ObjectNames, job_id: str, *, code: str, num_parts: int
) -> dict[str, Any]:
    """Indexed or not: the one makes worker pods, the other only waits for them."""
    is_elastic = options.mode == "elastic"
    environment = [{"name": "HOME", "value": WORK}, _from_order(names, env.ORDER, ORDER_KEY)]
    if is_elastic:
        environment += [_from_order(names, TEMPLATE, WORKER_KEY)]
    else:
        environment += [_from_secret(env.TOKEN, names.token, ALL_TOKENS)]
    container = {
        "name": MAIN,
        "image": job.coordinator.image or job.image,
        **_pull(options),
        "command": ["sh", "-c", _coordinate(is_elastic, job_id, code)],
        "workingDir": WORK,
        "env": environment,
        "ports": [{"containerPort": PORT, "name": "http"}],
        "resources": _resources(job.coordinator.resources) or {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "securityContext": container_security("restricted"),
        "volumeMounts": [
            {"name": "work", "mountPath": WORK},
            {"name": "store", "mountPath": STORE},
            *([{"name": "code", "mountPath": PARTS, "readOnly": True}] if num_parts else []),
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
        ],
    }
    labels = {**_users(job), **names.labels(COORDINATOR)}
    pod = {"metadata": {"labels": labels, "annotations": {ID: job_id}}, "spec": spec}
    laid: dict[str, Any] = lay_over(pod, options.coordinator_raw)
    return laid


def literal(value: str) -> str:
    """Escaped: Kubernetes would expand $(NAME)."""
    return value.replace("$(", "$$(")


def _coordinate(is_elastic: bool, job_id: str, code: str) -> str:
    """The folder may be an earlier coordinator's, complete; other jobs may have theirs beside it."""
    folder = f"{STORE}/{job_id}"
    steps = ["umask 077", f"mkdir -p {folder}"]
    if code:
        steps.append(f"cat {PARTS}/* >{folder}/code.part && mv {folder}/code.part {folder}/code-{code}.tar.gz")
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


def _resources(given: NodeResources, num_gpus: int = 0) -> dict[str, Any]:
    shown = given.model_dump(mode="json")
    requests = {name: str(shown[name]) for name in ("cpu", "memory") if shown[name] is not None}
    limits = {name: str(shown["limits"][name]) for name in ("cpu", "memory") if shown["limits"][name] is not None}
    if num_gpus:
        limits[_GPU] = str(num_gpus)
    return {**({"requests": requests} if requests else {}), **({"limits": limits} if limits else {})}


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
    given: list[dict[str, Any]] = [dict(each) for each in options.tolerations]
    for condition in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{condition}"
        if not any(each.get("key") == key for each in given):
            silent = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _SILENT_NODE_S}
            given.append(silent)
    return given


def _users(job: Job) -> dict[str, str]:
    return {key: value for key, value in job.labels.items() if is_label(key, value)}


def _queue(options: Kubernetes) -> dict[str, str]:
    return {"kueue.x-k8s.io/queue-name": options.queue} if options.queue else {}


def _pull(options: Kubernetes) -> dict[str, str]:
    return {"imagePullPolicy": options.pull_policy} if options.pull_policy else {}


def _pull_secrets(options: Kubernetes) -> dict[str, Any]:
    return {"imagePullSecrets": [{"name": name} for name in options.pull_secrets]} if options.pull_secrets else {}


def _from_order(names: ObjectNames, variable: str, key: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"configMapKeyRef": {"name": names.order, "key": key}}}


def _from_secret(variable: str, secret: str, key: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _from_field(variable: str, path: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}
