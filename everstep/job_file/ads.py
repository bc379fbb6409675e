"""Reads `kind: distributed` of Oracle's ADS (`ads opctl run -f train.yaml`): a PyTorch cluster on OCI Data Science.

One main node and its workers are nodes of one kind here. OCIDs are not checked: a dry run needs no valid ones."""

from __future__ import annotations

import re

from everstep.job_file.draft import Draft
from everstep.job_file.tree import Tree

_INFRASTRUCTURE = ("spec", "infrastructure", "spec")
_CLUSTER = ("spec", "cluster", "spec")
_RUNTIME = ("spec", "runtime", "spec")
_CONSTANTS = (  # implied by the rest
    ("kind",),
    ("apiVersion",),
    *(("spec", part, key) for part in ("infrastructure", "cluster", "runtime") for key in ("apiVersion",)),
    ("spec", "infrastructure", "kind"),
    ("spec", "infrastructure", "type"),
)
_OCI = {
    "compartmentId": "compartment",
    "projectId": "project",
    "subnetId": "subnet",
    "logGroupId": "log_group",
    "logId": "log",
    "shapeName": "shape",
}


def is_ads(tree: Tree) -> bool:
    kind = tree.at("kind")
    return kind is not None and kind.text == "distributed"


def read(draft: Draft) -> None:
    for path in _CONSTANTS:
        draft.take(*path)
    kind = draft.text("spec", "cluster", "kind") or ""
    if kind.upper() != "PYTORCH":
        message = f"a cluster of kind {kind or 'nothing'}: Everstep trains PyTorch models"
        raise draft.refused(message, path=("spec", "cluster", "kind"), hint="kind: PYTORCH", code="ads-cluster-kind")
    _read_names(draft)
    _read_runtime(draft)
    _read_size(draft)
    _read_infrastructure(draft)
    _read_cluster(draft)


def _read_names(draft: Draft) -> None:
    names = [draft.text(*_CLUSTER, "name"), draft.text(*_INFRASTRUCTURE, "displayName"), draft.text("spec", "name")]
    draft.put("name", value=next(filter(None, names), None))
    draft.put("platform", "oci", "main_name", value=draft.text(*_CLUSTER, "main", "name"))
    draft.put("platform", "oci", "worker_name", value=draft.text(*_CLUSTER, "worker", "name"))


def _read_runtime(draft: Draft) -> None:
    kind, how = draft.text("spec", "runtime", "kind"), draft.text("spec", "runtime", "type")
    if kind not in (None, "python"):
        raise draft.refused(
            f"a runtime of kind {kind}", path=("spec", "runtime", "kind"), hint="kind: python", code="ads-runtime-kind"
        )
    if how is not None:
        draft.say(f"runtime.type: {how}: the code is the local folder `workdir`; fetch it before you submit")
    script = draft.text(*_RUNTIME, "entryPoint")
    if script is None:
        raise draft.refused(
            "spec.runtime.spec.entryPoint is missing", hint='entryPoint: "train.py"', code="ads-entry-point-missing"
        )
    draft.put("entrypoint", value=[script])
    draft.put("args", value=draft.texts(*_RUNTIME, "args"))
    draft.put("env", value={**_variables(draft, *_CLUSTER, "config", "env"), **_variables(draft, *_RUNTIME, "env")})


def _variables(draft: Draft, *path: str) -> dict[str, str]:
    found = {}
    for item in draft.items(*path):
        name = draft.text(*item, "name")
        if name is None:
            raise draft.refused(
                f"{'.'.join(item)} has no name", path=item, hint="- {name: A, value: b}", code="ads-variable-unnamed"
            )
        found[name] = draft.text(*item, "value") or ""
    return found


def _read_size(draft: Draft) -> None:
    num_main = draft.whole(*_CLUSTER, "main", "replicas")
    num_workers = draft.whole(*_CLUSTER, "worker", "replicas")
    if draft.whole(*_CLUSTER, "ps", "replicas"):
        message = "parameter servers: Everstep has none"
        raise draft.refused(message, path=(*_CLUSTER, "ps"), hint="remove spec.ps", code="ads-parameter-servers")
    num_nodes = (1 if num_main is None else num_main) + (num_workers or 0)
    draft.put("nodes", value=num_nodes)
    shape = draft.look(*_INFRASTRUCTURE, "shapeName")
    gpus = re.search(r"\.GPU.*\.(\d+)$", shape.text) if shape else None
    if gpus and int(gpus[1]) > 1:  # ADS starts a process for each GPU, else one
        draft.put("workers_per_node", value=int(gpus[1]))


def _read_infrastructure(draft: Draft) -> None:
    for theirs, ours in _OCI.items():
        draft.put("platform", "oci", ours, value=draft.text(*_INFRASTRUCTURE, theirs))
    draft.put("platform", "oci", "ocpus", value=draft.text(*_INFRASTRUCTURE, "shapeConfigDetails", "ocpus"))
    draft.put("platform", "oci", "memory_gb", value=draft.text(*_INFRASTRUCTURE, "shapeConfigDetails", "memoryInGBs"))
    draft.put("platform", "oci", "block_storage_gb", value=draft.whole(*_INFRASTRUCTURE, "blockStorageSize"))
    draft.put("platform", "oci", "freeform_tags", value=draft.mapping(*_INFRASTRUCTURE, "freeformTags"))
    if tags := draft.take(*_INFRASTRUCTURE, "definedTags"):
        draft.put("platform", "oci", "defined_tags", value=tags.plain())


def _read_cluster(draft: Draft) -> None:
    image = draft.text(*_CLUSTER, "image")
    if image is not None and image.startswith("@"):
        draft.say(f"cluster.spec.image: {image} means the registry and tag of config.ini; set `image`")
        image = None
    draft.put("image", value=image)
    draft.put("platform", "oci", "work_dir", value=draft.text(*_CLUSTER, "workDir"))
    draft.put("platform", "oci", "start_options", value=draft.texts(*_CLUSTER, "config", "startOptions"))
    draft.data.setdefault("platform", {}).setdefault("oci", {})
