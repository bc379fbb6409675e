"""Reads DLRover's ElasticJob manifest, recognized by `spec.replicaSpecs`: it may come without kind and metadata.

Each worker pod is a node. What its pod template has beyond our keys goes to `platform.kubernetes.raw` as it is."""

from __future__ import annotations

from typing import Any

from everstep.job_file.draft import Draft
from everstep.job_file.launched import put_command
from everstep.job_file.pod import read_environment, read_resources, read_volumes
from everstep.job_file.tree import Path, Tree

_SPECS = ("spec", "replicaSpecs")
_WORKER = (*_SPECS, "worker")
_POD = (*_WORKER, "template", "spec")
_MASTERS = ("dlrover-master", "master")
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
            raise draft.refused(
                f"replicas of {role}: all nodes are workers here",
                path=(*_SPECS, role),
                hint="worker",
                code="elasticjob-role-unsupported",
            )
    if draft.look(*_WORKER) is None:
        raise draft.refused(
            "spec.replicaSpecs has no worker",
            path=_SPECS,
            hint="worker: {replicas: 2, template: …}",
            code="elasticjob-worker-missing",
        )


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
    read_environment(draft, *path)
    read_resources(draft, (*path, "resources"), ("resources",))


def _read_pod(draft: Draft, container: Path) -> None:
    if draft.text(*_POD, "restartPolicy") not in (None, "Never"):
        draft.say("restartPolicy was not carried over: the coordinator replaces pods")
    read_volumes(draft, _POD, container)
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
            read_resources(draft, (*path, "resources"), ("coordinator", "resources"))
            draft.take(*_SPECS, role, "replicas")
