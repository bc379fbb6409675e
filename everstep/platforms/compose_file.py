"""A job as a Compose file, for Compose 1.29 and 2: its coordinator, a service for each node, a private network.

Pure, and nothing in it is secret: tokens and secrets are files of the job's folder, mounted."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep import env
from everstep.errors import UsageError
from everstep.job_file.order import NodeOrder, checkpoint_volume, in_containers, order_of
from everstep.job_file.schema import Job, NodeResources, Volume
from everstep.platforms.base import Ticket
from everstep.platforms.raw_overlay import lay_over

COORDINATOR, PORT = "coordinator", 7070
WORKER_TOKEN, SECRETS = "worker-token", "secrets.json"  # of the job's folder
_INSIDE = "/everstep"  # where a container sees the job's files
_SHM_BYTES = 2 << 30  # Docker's own 64 MiB are too few for data loaders and checkpoints
_LEAVE_S, _END_S = 10, 45  # beyond the grace: for a node to end, and for all nodes to hear of the job's end
_PROBE = "import socket; socket.create_connection(('{host}', {port}), 3).close()"


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """The submitting user: containers run as this user, who then owns the files they write."""

    uid: int
    gid: int


def project_name(job: Job, ticket: Ticket) -> str:
    given = job.platform.compose.project if job.platform.compose is not None else ""
    return given or ticket.id


def node_name(number: int) -> str:
    return f"node-{number}"


def image_of(job: Job) -> str:
    """The named image, or the one that `everstep build` makes."""
    if job.image:
        return job.image
    if job.build is not None:
        return f"{job.slug}:latest"
    hint = "`image: NAME` in the job file; `everstep init` and `everstep build` make one"
    raise UsageError("compose needs an image", hint=hint, code="compose-image-missing")


def compose_file(job: Job, ticket: Ticket, user: User) -> dict[str, Any]:
    order = order_of(job, ticket.id, code=ticket.code.sha256 if ticket.code is not None else "")
    order = in_containers(order, checkpoint_volume(job))
    nodes = {node_name(number): _node(job, ticket, order, number, user) for number in range(job.nodes.max)}
    ours = {
        "services": {COORDINATOR: _coordinator(job, ticket, order, user), **nodes},
        "networks": {"job": {"driver": "bridge"}},
        **_named_volumes(job),
    }
    raw = job.platform.compose.raw if job.platform.compose is not None else {}
    result: dict[str, Any] = lay_over(_escaped(ours), _for_each_node(raw, nodes))
    return result


def notes_on(job: Job) -> tuple[str, ...]:
    uri = job.checkpoint.uri
    is_inside = uri.startswith("/") and not any(_is_below(uri, volume.target) for volume in job.volumes)
    lost = [f"checkpoint: {uri} is not in a volume and is lost with the node that writes it"] if is_inside else []
    unused = [f"resources.gpu_type: {job.resources.gpu_type}: not used on compose"] if job.resources.gpu_type else []
    return (*lost, *unused)


def _coordinator(job: Job, ticket: Ticket, order: NodeOrder, user: User) -> dict[str, Any]:
    options = ["--folder", _INSIDE, "--host", "0.0.0.0", "--port", str(PORT), "--fleet", "none"]
    return {
        **_common(job, ticket, COORDINATOR, user, probed="127.0.0.1"),
        "image": job.coordinator.image or image_of(job),
        "entrypoint": ["everstep", "coordinate", *options],
        "environment": {env.ORDER: order.to_json(), **_home(user)},
        "ports": [f"127.0.0.1::{PORT}"],
        "restart": "on-failure:3",
        "stop_grace_period": f"{order.grace_s + _END_S:.0f}s",
        "volumes": [_bind(str(ticket.folder), _INSIDE), *_checkpoint_mount(job, ticket)],
        **_limits(job.coordinator.resources),
    }


def _checkpoint_mount(job: Job, ticket: Ticket) -> list[dict[str, Any]]:
    """For the record, which is written beside the checkpoints."""
    volume = checkpoint_volume(job)
    return [] if volume is None else [_volume(job.volumes.index(volume), volume, ticket.workdir)]


def _node(job: Job, ticket: Ticket, order: NodeOrder, number: int, user: User) -> dict[str, Any]:
    name = node_name(number)
    rank = ["--node-rank", str(number)] if number < job.nodes.min else []  # later nodes take free ranks
    secret = {env.SECRETS_FILE: f"{_INSIDE}/{SECRETS}"} if job.secrets else {}
    return {
        **_common(job, ticket, name, user, probed=COORDINATOR),
        "image": image_of(job),
        "entrypoint": ["everstep", "node", "--log-dir", f"{_INSIDE}/{name}", *rank],
        "depends_on": [COORDINATOR],
        "environment": {
            env.ORDER: order.to_json(),
            env.COORDINATOR: f"http://{COORDINATOR}:{PORT}",
            env.TOKEN_FILE: f"{_INSIDE}/token",
            **secret,
            **_home(user),
        },
        "restart": "no",
        "shm_size": int(job.resources.shm or _SHM_BYTES),
        "stop_grace_period": f"{order.grace_s + _LEAVE_S:.0f}s",
        "volumes": [
            _bind(str(ticket.folder / WORKER_TOKEN), f"{_INSIDE}/token", is_readonly=True),
            *([_bind(str(ticket.folder / SECRETS), f"{_INSIDE}/{SECRETS}", is_readonly=True)] if secret else []),
            _bind(str(ticket.folder / name), f"{_INSIDE}/{name}"),
            *(_volume(index, volume, ticket.workdir) for index, volume in enumerate(job.volumes)),
        ],
        **_limits(job.resources),
        **_gpus(job, number),
    }


def _common(job: Job, ticket: Ticket, name: str, user: User, *, probed: str) -> dict[str, Any]:
    return {
        "container_name": f"{project_name(job, ticket)}-{name}",
        "hostname": name,
        "init": True,  # reaps orphans of workers, and forwards signals
        **({"user": f"{user.uid}:{user.gid}"} if user.uid != 0 else {}),
        "networks": ["job"],
        "labels": {**job.labels, "everstep.job": ticket.id},
        "healthcheck": {
            "test": ["CMD", "python3", "-c", _PROBE.format(host=probed, port=PORT)],
            "interval": "10s",
            "timeout": "5s",
            "retries": 3,
            "start_period": "60s",
        },
    }


def _home(user: User) -> dict[str, str]:
    """A user that the image does not know has no home in it."""
    return {} if user.uid == 0 else {"HOME": "/tmp", "USER": "everstep"}


def _limits(resources: NodeResources) -> dict[str, Any]:
    """CPUs only have a limit; memory has a reservation, too."""
    cpu, memory = resources.limits.cpu or resources.cpu, resources.limits.memory or resources.memory
    return {
        **({} if cpu is None else {"cpus": float(cpu)}),
        **({} if memory is None else {"mem_limit": int(memory)}),
        **({} if resources.memory is None else {"mem_reservation": int(resources.memory)}),
    }


def _gpus(job: Job, number: int) -> dict[str, Any]:
    """GPUs by number: with a count, all nodes would get the same first GPUs."""
    if not job.resources.gpu:
        return {}
    first = number * job.resources.gpu
    own = [str(gpu) for gpu in range(first, first + job.resources.gpu)]
    device = {"driver": "nvidia", "device_ids": own, "capabilities": ["gpu"]}
    return {"deploy": {"resources": {"reservations": {"devices": [device]}}}}


# --- volumes --------------------------------------------------------------------------------------


def _bind(source: str, target: str, *, is_readonly: bool = False) -> dict[str, Any]:
    return {"type": "bind", "source": source, "target": target, **({"read_only": True} if is_readonly else {})}


def _volume(index: int, volume: Volume, workdir: Path) -> dict[str, Any]:
    if volume.kind == "path":
        source = os.path.normpath(workdir / Path(volume.source).expanduser())
        return _bind(source, volume.target, is_readonly=volume.readonly)
    if volume.kind == "emptydir":
        return {"type": "volume", "target": volume.target}
    if volume.kind == "nfs":
        readonly = {"read_only": True} if volume.readonly else {}
        return {"type": "volume", "source": f"nfs-{index}", "target": volume.target, **readonly}
    raise UsageError(
        f"volumes: {volume.source} cannot be mounted by compose",
        hint="a path of this machine, nfs:SERVER:/PATH, emptydir",
        code="compose-volume-unsupported",
    )


def _named_volumes(job: Job) -> dict[str, Any]:
    def found() -> Iterator[tuple[str, dict[str, Any]]]:
        for index, volume in enumerate(job.volumes):
            if volume.kind == "nfs":
                server, _, path = volume.source.removeprefix("nfs:").partition(":")
                mode = "ro" if volume.readonly else "rw"
                options = {"type": "nfs", "o": f"addr={server},{mode}", "device": f":{path}"}
                yield f"nfs-{index}", {"driver": "local", "driver_opts": options}

    named = dict(found())
    return {"volumes": named} if named else {}


def _is_below(path: str, folder: str) -> bool:
    return f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


# --- the overlay ----------------------------------------------------------------------------------


def _for_each_node(raw: Mapping[str, Any], nodes: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the service `node` apply to every node."""
    services = dict(raw.get("services") or {})
    if "node" not in services:
        return dict(raw)
    of_all = services.pop("node")
    each = {name: lay_over(of_all, services.get(name, {})) for name in nodes}
    return {**raw, "services": {**services, **each}}


def _escaped(value: Any) -> Any:
    """Compose expands variables after a dollar sign; two of them mean one."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {key: _escaped(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_escaped(each) for each in value]
    return value
