"""The pool of one experiment: `everstep e create --platform …` describes it, and the local service creates its nodes.

The keys that describe a job's machines describe the pool's nodes. Pure, except for the request, a file in the local
service's folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from everstep.errors import UsageError
from everstep.job_file.schema import Job
from everstep.job_file.tree import dump
from everstep.pool.pool_file import PLATFORMS, parse_pool_file
from everstep.storage import private_file

IDLE_S = 60.0
PATIENCE_S = 600.0
_OF_NODES = ("cpu", "memory", "limits", "gpu", "gpu_type", "shm")
_IN_CONTAINERS = ("image", "volumes")
_ANY_URL = "http://localhost:1"  # only to check the rest


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolRequest:
    """All that the local service needs in order to create the nodes of a pool."""

    pool: str
    section: Mapping[str, Any]  # as in a pool file, without the coordinator
    address: str = ""  # of this machine, as the nodes reach it; empty: they are here
    env: Mapping[str, str] = field(default_factory=dict)  # where the platform is, as the command found it

    @property
    def platform(self) -> str:
        return str(next(iter(self.section["platform"])))

    def file(self, port: int) -> str:
        """The pool file, with a coordinator that listens on this port of this machine."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        url = {"coordinator": f"http://{host}:{port}"} if self.address else {}
        return dump({"pools": {self.pool: {**self.section, **url}}})

    def write(self, folder: Path) -> None:
        private_file.write_json(private_file.make_folder(folder / self.pool) / "request.json", asdict(self))

    @classmethod
    def read(cls, folder: Path) -> PoolRequest:
        return cls(**json.loads((folder / "request.json").read_text()))


def request_for(
    job: Job,
    platform: str,
    *,
    experiment: str,
    num_nodes: int | None,
    find_address: Callable[[], str],
    env: Mapping[str, str],
) -> PoolRequest:
    """`experiment`: a text that identifies the experiment, so that it gets the same pool again. `find_address` is
    called only if all else is valid and the nodes are elsewhere."""
    if platform not in PLATFORMS:
        raise UsageError(
            f"--platform {platform}: cannot create nodes for an experiment",
            hint=f"one of {', '.join(PLATFORMS)}; elsewhere, `everstep pool join` offers a machine's slots",
            code="pool-platform-unknown",
        )
    section = _section(job, platform, num_nodes)
    digest = hashlib.sha256(json.dumps([experiment, section], sort_keys=True).encode()).hexdigest()
    pool = f"{platform}-{digest[:8]}"
    parse_pool_file(dump({"pools": {pool: {**section, "coordinator": _ANY_URL}}}), name=f"--platform {platform}")
    address = "" if platform == "local" else find_address()
    return PoolRequest(pool=pool, section=section, address=address, env=env)


def _section(job: Job, platform: str, num_nodes: int | None) -> dict[str, Any]:
    told = job.dump()
    max_nodes, slots = num_nodes or job.nodes.max, _slots_per_node(job)
    if platform == "local" and max_nodes > 1 and slots == "auto":
        raise UsageError(
            f"{max_nodes} nodes on this machine would each take all of its slots",
            hint="set workers_per_node: N in the file, the number of slots of each node",
            code="local-nodes-without-slots",
        )
    resources = {name: value for name, value in told.get("resources", {}).items() if name in _OF_NODES}
    given = {name: told[name] for name in ("setup", "env", "time_limit", *_IN_CONTAINERS) if name in told}
    unused = _IN_CONTAINERS if platform != "kubernetes" else ()
    return {
        "platform": {platform: told.get("platform", {}).get(platform, {})},
        "max_nodes": max_nodes,
        "slots_per_node": slots,
        "idle": IDLE_S,
        "patience": PATIENCE_S,
        "grace": job.checkpoint.grace,
        **{name: value for name, value in given.items() if name not in unused},
        **({"resources": resources} if resources else {}),
    }


def _slots_per_node(job: Job) -> int | str:
    if isinstance(job.workers_per_node, int):
        return job.workers_per_node
    return job.resources.gpu or "auto"


def unused_on(job: Job, platform: str) -> Iterator[str]:
    """Notes for the author of the file."""
    for name in _IN_CONTAINERS:
        if name in job.model_fields_set and platform != "kubernetes":
            yield f"{name} is not used on {platform}"


def described(request: PoolRequest) -> str:
    slots, most = request.section["slots_per_node"], request.section["max_nodes"]
    each = "one per GPU, or per CPU without GPUs" if slots == "auto" else f"{slots} per node"
    there = f", which reach this machine as {request.address}" if request.address else ""
    return f"{request.platform}: up to {most} node{'s' * (most != 1)} for this experiment{there}; slots: {each}"
