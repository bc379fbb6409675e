"""Parts of a Kubernetes pod, into the native form: environment, resources, volumes."""

from __future__ import annotations

from everstep.job_file.draft import Draft
from everstep.job_file.tree import Path, Tree

_GPU = "nvidia.com/gpu"
_SHM = "/dev/shm"


def read_environment(draft: Draft, *container: str) -> None:
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


def read_resources(draft: Draft, source: Path, target: Path) -> None:
    """Requests, and limits beyond them. A limit alone is a request too, as in Kubernetes."""
    for name in ("cpu", "memory"):
        limit = draft.text(*source, "limits", name)
        request = draft.text(*source, "requests", name) or limit
        draft.put(*target, name, value=request)
        if limit != request:
            draft.put(*target, "limits", name, value=limit)
    gpus = [draft.text(*source, kind, _GPU) for kind in ("requests", "limits")]
    draft.put(*target, "gpu", value=gpus[1] or gpus[0])


def read_volumes(draft: Draft, pod: Path, container: Path) -> None:
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
