"""Pod security: Kubernetes' "restricted" level, relaxed only where a job asks for it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everstep.job_file.schema import Job

USER = 1000


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
