"""What a coordinator may do in its namespace: make pods, look at them, delete them, and make the Secret that they read.

It asks for no Secret, and for nothing outside the namespace; but a right to make pods is as good as one to read every
Secret in it (docs/guides/kubernetes.md). Workers get no token of the cluster at all. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.platforms.kubernetes.names import ObjectNames

_GROUP = "rbac.authorization.k8s.io"


def rbac(names: ObjectNames) -> list[dict[str, Any]]:
    """The coordinator's own; of Jobs, it sees and ends no other than its own."""
    return _objects(names.coordinator, names.labels(), {"resourceNames": [names.coordinator]})


def shared_rbac(account: str) -> list[dict[str, Any]]:
    """For all coordinators of a namespace, made once by whoever may: `service_account` names it in job files."""
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
