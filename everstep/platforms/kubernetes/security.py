"""Pod security: Kubernetes' "restricted" level, relaxed only where a job asks for it. Pure.

A coordinator's rights in its namespace: create, read and delete pods, and create the Secret that they read. It cannot
read Secrets or anything outside the namespace; but the right to create pods is as good as one to read every Secret in
it (docs/guides/kubernetes.md). Workers get no cluster token at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from everstep.job_file.schema import Job
from everstep.platforms.kubernetes.names import ObjectNames

USER = 1000
_GROUP = "rbac.authorization.k8s.io"


def pod_security(level: str) -> dict[str, Any]:
    context: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if level == "restricted":
        context |= {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    return context


def container_security(level: str) -> dict[str, Any]:
    if level == "restricted":
        return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {}


def relaxations(job: Job, level: str) -> Iterator[str]:
    """What a namespace that enforces the restricted level would refuse, and why."""
    if level != "restricted":
        yield f"security: {level}: worker pods may run as root, if their image does"
    for volume in job.volumes:
        if volume.kind == "path":
            yield (
                f"volume {volume.target}: {volume.source} is a path of the nodes (hostPath), which the restricted "
                "level of pod security forbids: the namespace must allow it"
            )


def rbac(names: ObjectNames) -> list[dict[str, Any]]:
    """The coordinator's own; of Jobs, it sees and ends no other than its own."""
    return _objects(names.coordinator, names.labels(), {"resourceNames": [names.coordinator]})


def shared_rbac(account: str) -> list[dict[str, Any]]:
    """For all coordinators of a namespace, made once by an administrator; job files name it as `service_account`."""
    return _objects(account, {"app.kubernetes.io/name": "everstep"}, {})


def _objects(name: str, labels: Mapping[str, str], which_jobs: Mapping[str, Any]) -> list[dict[str, Any]]:
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete", "get", "list"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "patch"], **which_jobs},
        # Where a cluster checks who may own what.
        {"apiGroups": ["batch"], "resources": ["jobs/finalizers"], "verbs": ["update"], **which_jobs},
    ]
    metadata = {"name": name, "labels": dict(labels)}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": False},
        {"apiVersion": f"{_GROUP}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": _GROUP, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name}],
        },
    ]
