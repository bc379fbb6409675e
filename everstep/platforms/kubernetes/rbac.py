"""What a coordinator may do in its namespace: make pods, look at them, delete them, and make the Secret that they read.

It reads no Secret, and nothing outside the namespace. Workers get no token of the cluster at all. Pure."""

from __future__ import annotations

from typing import Any

from everstep.platforms.kubernetes.names import Names

_RULES: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete", "get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
]


def rbac(names: Names) -> list[dict[str, Any]]:
    """The coordinator's own; of Jobs, it sees and ends no other than its own."""
    its_job = {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "patch"]}
    its_job["resourceNames"] = [names.coordinator]
    finalizers = {**its_job, "resources": ["jobs/finalizers"], "verbs": ["update"]}
    metadata = {"name": names.coordinator, "labels": names.labels()}
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": False},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": [*_RULES, its_job, finalizers]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": names.coordinator},
            "subjects": [{"kind": "ServiceAccount", "name": names.coordinator}],
        },
    ]
