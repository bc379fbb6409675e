"""A job's volumes as those of a pod. Pure."""

from __future__ import annotations

from typing import Any

from everstep.errors import UsageError
from everstep.job_file.order import checkpoint_volume
from everstep.job_file.schema import Job, Volume

SHM = "/dev/shm"
WORK = "/everstep"  # the pod's own folder: home, code, logs of workers


def pod_volumes(job: Job) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and mounts: a folder to work in, shared memory, and the job's own."""
    shm: dict[str, Any] = {"medium": "Memory"}
    if job.resources.shm is not None:
        shm["sizeLimit"] = str(job.resources.model_dump(mode="json")["shm"])
    volumes: list[dict[str, Any]] = [{"name": "work", "emptyDir": {}}, {"name": "shm", "emptyDir": shm}]
    mounts: list[dict[str, Any]] = [{"name": "work", "mountPath": WORK}, {"name": "shm", "mountPath": SHM}]
    for number, volume in enumerate(job.volumes):
        name = f"volume-{number}"
        if volume.target.rstrip("/") in (WORK, SHM):
            message = f"a volume at {volume.target}: Everstep uses that path"
            raise UsageError(message, hint="resources.shm sizes /dev/shm", code="kubernetes-volume-target-taken")
        volumes.append({"name": name, **_source(volume)})
        mount = {"name": name, "mountPath": volume.target}
        mounts.append({**mount, "readOnly": True} if volume.readonly else mount)
    return volumes, mounts


def record_volume(job: Job) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volume and mount for the coordinator's pod, which leaves the record beside the checkpoints. A claim for one node
    may be bound to that node: a coordinator on another one would never start."""
    volume = checkpoint_volume(job)
    if volume is None or (volume.kind == "pvc" and job.nodes.max == 1):
        return [], []
    return [{"name": "checkpoints", **_source(volume)}], [{"name": "checkpoints", "mountPath": volume.target}]


def _source(volume: Volume) -> dict[str, Any]:
    if volume.kind == "path":
        if not volume.source.startswith("/"):
            raise UsageError(
                f"volume {volume.source}: a path of the nodes must be absolute",
                hint="the workdir is sent with the code; pvc:NAME is a claim",
                code="kubernetes-volume-not-absolute",
            )
        return {"hostPath": {"path": volume.source}}
    if volume.kind == "pvc":
        return {"persistentVolumeClaim": {"claimName": volume.source.removeprefix("pvc:")}}
    if volume.kind == "nfs":
        server, _, path = volume.source.removeprefix("nfs:").partition(":")
        return {"nfs": {"server": server, "path": path or "/"}}
    if volume.kind == "emptydir":
        return {"emptyDir": {}}
    message = f"volume {volume.source}: Kubernetes cannot mount a URI"
    raise UsageError(message, hint="read it in the script, or use pvc:NAME", code="kubernetes-volume-is-uri")
