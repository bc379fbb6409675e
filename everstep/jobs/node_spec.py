"""One node's part in a job, as the command line asks for it."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from everstep import env
from everstep.addresses import address_towards
from everstep.errors import UsageError
from everstep.launcher.endpoint import save_token
from everstep.launcher.node import ENDING_SIGNALS, NodeSpec
from everstep.launcher.shown_streams import Shown
from everstep.wire import Fitness
from everstep.wire.tokens import only_for_workers


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentRequest:
    command: tuple[str, ...]
    coordinator_url: str
    job: str
    num_workers: int
    log_dir: Path
    name: str | None = None
    token_file: Path | None = None
    node_rank: int = -1
    address: str | None = None
    role: str = "default"
    run_id: str | None = None
    is_local_rank_virtual: bool = False
    signals: tuple[int, ...] = ENDING_SIGNALS
    shutdown_s: float = 30.0
    heartbeat_s: float = 1.0
    fitness: Fitness | None = None  # what the node's check found
    shown: Shown = field(default_factory=Shown)
    copied_texts: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


def node_spec(request: AgentRequest, directory: Path) -> NodeSpec:
    where = urlsplit(request.coordinator_url)
    if where.hostname is None:
        raise UsageError(f"{request.coordinator_url!r} is no URL", hint="such as http://10.0.0.5:7070")
    return NodeSpec(
        job=request.job,
        coordinator_url=request.coordinator_url,
        token_file=worker_token_path(request.token_file, directory),
        command=request.command,
        num_workers=request.num_workers,
        directory=directory,
        agent=request.name or f"{socket.gethostname()}-{secrets.token_hex(3)}",
        address=request.address or address_towards(where.hostname),
        is_address_given=request.address is not None,
        node_rank=request.node_rank,
        heartbeat_s=request.heartbeat_s,
        shutdown_s=request.shutdown_s,
        role=request.role,
        run_id=request.run_id,
        is_local_rank_virtual=request.is_local_rank_virtual,
        signals=request.signals,
        fitness=request.fitness,
    )


def find_token(token_file: Path | None) -> str:
    token = env.read_token(token_file) if token_file is not None else env.token()
    if token is None:
        raise UsageError("no token for the coordinator", hint=f"give --token-file or set {env.TOKEN_FILE}")
    return token


def token_path(token_file: Path | None, directory: Path) -> Path:
    """The file that holds the token; one given in the environment is put into one."""
    if token_file is not None:
        return token_file.resolve()
    return save_token(directory / "token", find_token(None))


def worker_token_path(token_file: Path | None, directory: Path) -> Path:
    """The file that the agent and its workers read: where there is a token for workers, no other is in it."""
    path = token_path(token_file, directory)
    text = env.read_token(path)
    given = only_for_workers(text)
    return path if given == text else save_token(directory / "worker-token", given)
