"""Reads DLRover's ElasticJob manifest, recognized by `spec.replicaSpecs`: it may come without kind and metadata.

Each worker pod is a node. What its pod template has beyond our keys goes to `platform.kubernetes.raw` as it is."""

from __future__ import annotations

from typing import Any

from everstep.job_file.draft import Draft
from everstep.job_file.launched import put_command
from everstep.job_file.tree import Path, Tree

_SPECS = ("spec", "replicaSpecs")
_WORKER = (*_SPECS, "worker")
_POD = (*_WORKER, "template", "spec")
_MASTERS = ("dlrover-master", "master")
_GPU = "nvidia.com/gpu"
_SHM = "/dev/shm"
_PULL = {"Always", "IfNotPresent", "Never"}
_RAW = (  # of a pod: taken as they are
    *("affinity", "dnsPolicy", "hostAliases", "hostNetwork", "initContainers", "runtimeClassName", "schedulerName"),
    *("securityContext", "terminationGracePeriodSeconds", "topologySpreadConstraints"),
)


def is_elasticjob(tree: Tree) -> bool:
    return tree.at(*_SPECS) is not None


def read(draft: Draft) -> None:
    for path in (("apiVersion",), ("kind",)):
        draft.take(*path)
    strategy = draft.text("spec", "distributionStrategy")
    if strategy not in (None, "AllreduceStrategy"):
        raise draft.refused(
            f"distributionStrategy: {strategy}: Everstep trains by all-reduce",
            path=("spec", "distributionStrategy"),
            hint="AllreduceStrategy",
            code="elasticjob-strategy-unsupported",
        )
    _refuse_other_roles(draft)
    draft.put("name", value=draft.text("metadata", "name"))
    draft.put("platform", "kubernetes", "namespace", value=draft.text("metadata", "namespace"))
    draft.put("labels", value=draft.mapping("metadata", "labels"))
    num_workers = draft.whole(*_WORKER, "replicas") or 1
    draft.put("nodes", value=num_workers)
    container = _main_container(draft)
    _read_container(draft, container, num_workers)
    _read_pod(draft, container)
    _read_master(draft)
    draft.data.setdefault("platform", {}).setdefault("kubernetes", {})


def _refuse_other_roles(draft: Draft) -> None:
    roles = draft.look(*_SPECS)
    for role, _ in roles.children() if roles else ():
        if role not in ("worker", *_MASTERS) and (draft.whole(*_SPECS, role, "replicas") or 0) > 0:
            message = f"replicas of {role}: all nodes are workers here"
            raise draft.refused(message, path=(*_SPECS, role), hint="worker", code="elasticjob-role-unsupported")
    if draft.look(*_WORKER) is None:
        hint = "worker: {replicas: 2, template: …}"
        raise draft.refused("spec.replicaSpecs has no worker", path=_SPECS, hint=hint, code="elasticjob-worker-missing")


def _main_container(draft: Draft) -> Path:
    containers = draft.items(*_POD, "containers")
    if not containers:
        raise draft.refused(
            "the worker's template has no container",
            path=_WORKER,
            hint="containers: [{name: main}]",
            code="elasticjob-container-missing",
        )
    return next((path for path in containers if draft.text(*path, "name") == "main"), containers[0])


def _read_container(draft: Draft, path: Path, num_workers: int) -> None:
    draft.put("image", value=draft.text(*path, "image"))
    policy = draft.text(*path, "imagePullPolicy")
    draft.put("platform", "kubernetes", "pull_policy", value=policy if policy in _PULL else None)
    words = (*draft.texts(*path, "command"), *draft.texts(*path, "args"))
    if not words:
        raise draft.refused(
            "the worker's container has no command",
            path=path,
            hint="command: [dlrover-run, train.py]",
            code="elasticjob-command-missing",
        )
    counts = {"WORKER_NUM": str(num_workers), "NODE_NUM": str(num_workers)}
    put_command(draft, words, counts)
    draft.put("workdir", value=draft.text(*path, "workingDir"))
    _read_environment(draft, *path)
    _read_resources(draft, (*path, "resources"), ("resources",))


def _read_pod(draft: Draft, container: Path) -> None:
    if draft.text(*_POD, "restartPolicy") not in (None, "Never"):
        draft.say("restartPolicy was not carried over: the coordinator replaces pods")
    _read_volumes(draft, _POD, container)
    names = {"serviceAccountName": "service_account", "priorityClassName": "priority_class"}
    for theirs, ours in names.items():
        draft.put("platform", "kubernetes", ours, value=draft.text(*_POD, theirs))
    draft.put("platform", "kubernetes", "node_selector", value=draft.mapping(*_POD, "nodeSelector"))
    if tolerations := draft.take(*_POD, "tolerations"):
        draft.put("platform", "kubernetes", "tolerations", value=tolerations.plain())
    secrets = [draft.text(*each, "name") for each in draft.items(*_POD, "imagePullSecrets")]
    draft.put("platform", "kubernetes", "pull_secrets", value=[each for each in secrets if each])
    raw: dict[str, Any] = {}
    for key in _RAW:
        if found := draft.take(*_POD, key):
            raw.setdefault("spec", {})[key] = found.plain()
    if metadata := draft.take(*_WORKER, "template", "metadata"):
        raw["metadata"] = metadata.plain()
    draft.put("platform", "kubernetes", "raw", value=raw)


def _read_master(draft: Draft) -> None:
    """DLRover's master is the coordinator; only its resources are used."""
    for role in _MASTERS:
        path = (*_SPECS, role, "template", "spec", "containers", "0")
        if draft.look(*path) is not None:
            _read_resources(draft, (*path, "resources"), ("coordinator", "resources"))
            draft.take(*_SPECS, role, "replicas")


# --- parts of a pod -------------------------------------------------------------------------------


def _read_environment(draft: Draft, *container: str) -> None:
    """Values go to `env`, keys of secrets to `secrets`; other sources are left to the notes."""
    for path in draft.items(*container, "env"):
        name = draft.text(*path, "name")
        if name is None:
            raise draft.refused(
                "an environment variable without a name", path=path, hint="name: A", code="pod-variable-unnamed"
            )
        secret = (*path, "valueFrom", "secretKeyRef")
        if draft.look(*secret) is not None:
            draft.put("secrets", name, value=f"kubernetes:{draft.text(*secret, 'name')}/{draft.text(*secret, 'key')}")
        elif draft.look(*path, "valueFrom") is None:
            draft.data.setdefault("env", {})[name] = draft.text(*path, "value") or ""


def _read_resources(draft: Draft, source: Path, target: Path) -> None:
    """Requests, and limits beyond them. A limit alone is a request too, as in Kubernetes."""
    for name in ("cpu", "memory"):
        limit = draft.text(*source, "limits", name)
        request = draft.text(*source, "requests", name) or limit
        draft.put(*target, name, value=request)
        if limit != request:
            draft.put(*target, "limits", name, value=limit)
    gpus = [draft.text(*source, kind, _GPU) for kind in ("requests", "limits")]
    draft.put(*target, "gpu", value=gpus[1] or gpus[0])


def _read_volumes(draft: Draft, pod: Path, container: Path) -> None:
    """Mounts of the container; a volume of a kind that we have no key for is left to the notes."""
    volumes = [(draft.look(*path, "name"), path) for path in draft.items(*pod, "volumes")]
    by_name = {name.text: path for name, path in volumes if name is not None}
    found = []
    for path in draft.items(*container, "volumeMounts"):
        name = draft.look(*path, "name")
        volume = by_name.get(name.text) if name is not None else None
        source = _source(draft, volume) if volume else None
        if source is None or volume is None:
            continue
        draft.take(*path, "name")
        target = draft.text(*path, "mountPath") or ""
        is_readonly = draft.text(*path, "readOnly") == "true"
        if target == _SHM and source == "emptydir":
            draft.put("resources", "shm", value=draft.text(*volume, "emptyDir", "sizeLimit"))
        else:
            found.append({"source": source, "target": target, "readonly": is_readonly})
    draft.put("volumes", value=found)


def _source(draft: Draft, path: Path) -> str | None:
    volume = draft.look(*path) or Tree(value=None)
    if volume.at("hostPath", "path") is not None:
        source = draft.text(*path, "hostPath", "path")
        draft.take(*path, "hostPath", "type")
    elif volume.at("persistentVolumeClaim", "claimName") is not None:
        source = f"pvc:{draft.text(*path, 'persistentVolumeClaim', 'claimName')}"
    elif volume.at("nfs", "server") is not None:
        source = f"nfs:{draft.text(*path, 'nfs', 'server')}:{draft.text(*path, 'nfs', 'path')}"
    elif "emptyDir" in dict(volume.children()):
        source = "emptydir"
        draft.take(*path, "emptyDir", "medium")
    else:
        return None
    draft.take(*path, "name")
    return source
