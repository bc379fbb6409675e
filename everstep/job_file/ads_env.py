"""The environment of an ADS container (OCI__…, RANK), as one node of a job. Pure.

OCI__START_ARGS are options of a launcher, by torchrun's names: `--nnodes 1:3 --nproc-per-node 2 --max-restarts 5`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import ValidationError

from everstep.errors import UsageError
from everstep.job_file.draft import Draft
from everstep.job_file.launched import put_command
from everstep.job_file.order import NodeOrder, order_of
from everstep.job_file.problems import problems_of, usage_error
from everstep.job_file.schema import Job
from everstep.job_file.tree import planted

CODE_FOLDER = "/code"
MAIN = "MAIN"
_PORT = 29400
_TIMEOUT_S = 600.0
_IAM_TYPES = ("api_key", "resource_principal", "instance_principal")
_OUTSIDE = "Undefined"  # ADS's name of the job where the service gives none


@dataclass(frozen=True, kw_only=True, slots=True)
class AdsNode:
    rank: int | None  # of the node; the first one hosts the coordinator. None: any that is free
    folder: str  # that all nodes reach, of this job; "": there is none
    host: str  # of the first node, where that is known beforehand; else ""
    port: int
    is_port_given: bool
    timeout_s: float  # how long nodes wait for the first one
    num_nodes: int

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def read_node(environ: Mapping[str, str]) -> AdsNode:
    work_dir = environ.get("OCI__WORK_DIR", "").rstrip("/")
    mode, rank = environ.get("OCI__MODE", "").upper(), _whole(environ, "RANK", "NODE_RANK")
    if rank is None and mode == MAIN:
        rank = 0
    port = _whole(environ, "MASTER_PORT")
    return AdsNode(
        rank=rank,
        folder=f"{work_dir}/{environ.get('JOB_OCID') or _OUTSIDE}" if work_dir else "",
        host=environ.get("MASTER_ADDR", ""),
        port=_PORT if port is None else port,
        is_port_given=port is not None,
        timeout_s=float(_whole(environ, "OCI__TIMEOUT") or _TIMEOUT_S),
        num_nodes=1 + (_whole(environ, "OCI__WORKER_COUNT") or 0),
    )


def storage_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The identity that reads OCI__WORK_DIR: ADS's variable under ocifs's name, which wins if it is set."""
    kind = environ.get("OCI_IAM_TYPE", "")
    if kind and kind not in _IAM_TYPES:
        raise UsageError(f"OCI_IAM_TYPE={kind}", hint=f"one of {', '.join(_IAM_TYPES)}", code="oci-iam-type-unknown")
    return {} if not kind or environ.get("OCIFS_IAM_TYPE") else {"OCIFS_IAM_TYPE": kind}


def is_ads(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("OCI__ENTRY_SCRIPT"))


def read_order(environ: Mapping[str, str], job_id: str, *, num_gpus: int) -> NodeOrder:
    """As many workers as there are GPUs, or one; and all nodes, unless OCI__START_ARGS say otherwise."""
    if (kind := environ.get("OCI__RUNTIME_TYPE", "")) in ("git", "remote"):
        raise UsageError(
            f"OCI__RUNTIME_TYPE={kind}: fetching code is not supported",
            hint=f"put it into the image, at {CODE_FOLDER}, or into the job file's workdir",
            code="oci-runtime-type-unsupported",
        )
    if (cluster := environ.get("OCI__CLUSTER_TYPE", "PYTORCH")).upper() != "PYTORCH":
        message = f"OCI__CLUSTER_TYPE={cluster}: Everstep trains PyTorch models"
        raise UsageError(message, hint="OCI__CLUSTER_TYPE=PYTORCH", code="oci-cluster-type-unsupported")
    script, num_nodes = environ["OCI__ENTRY_SCRIPT"], read_node(environ).num_nodes
    draft = Draft(planted({}), name="the environment")
    draft.put("nodes", value=num_nodes)
    draft.put("workers_per_node", value=max(1, num_gpus))
    options = _words(environ, "OCI__START_ARGS")
    put_command(draft, ["torchrun", *options, script, *_words(environ, "OCI__ENTRY_SCRIPT_ARGS")], {})
    for note in draft.notes():
        message = f"OCI__START_ARGS: {note.partition(' ')[2]}"
        raise UsageError(message, hint="see startOptions in docs/guides/compose.md", code="oci-start-args-unsupported")
    try:
        job = Job.model_validate(draft.data)
    except ValidationError as error:
        raise usage_error(problems_of(error, planted(draft.data), Job), name="the environment") from None
    order = order_of(job, job_id, workdir=environ.get("OCI__CODE_DIR") or CODE_FOLDER)
    return replace(order, name=re.sub(r"\.py$", "", script.rpartition("/")[2]))


def _words(environ: Mapping[str, str], name: str) -> list[str]:
    try:
        return shlex.split(environ.get(name, ""))
    except ValueError as error:
        raise UsageError(
            f"{name}: {str(error).lower()}", hint="quotes as in a shell", code="oci-variable-quotes"
        ) from None


def _whole(environ: Mapping[str, str], *names: str) -> int | None:
    """Of the first of these variables that is set."""
    for name in names:
        if text := environ.get(name, "").strip():
            if not text.isdigit():
                raise UsageError(
                    f"{name}={text} is not a number", hint="a whole number from 0", code="oci-variable-not-a-number"
                )
            return int(text)
    return None
