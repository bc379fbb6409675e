"""What an agent is asked to run on its node, and the environment that each worker gets: torchrun's names and ours.

Pure: values in, values out."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep import env
from everstep.errors import UsageError
from everstep.launcher.worker_files import WorkerFiles

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSpec:
    """One agent's part of a job."""

    job: str
    coordinator_url: str
    token_file: Path
    command: tuple[str, ...]
    num_workers: int
    directory: Path  # the job's: logs, boards, events
    agent: str  # unique in the job
    address: str  # where peers reach this node
    max_restarts: int = 0
    heartbeat_s: float = 1.0
    shutdown_s: float = 30.0  # from SIGTERM to SIGKILL
    is_address_given: bool = False  # by the user; else each worker finds it by itself
    role: str = "default"
    run_id: str | None = None  # what workers see as TORCHELASTIC_RUN_ID; None: the job's id
    is_local_rank_virtual: bool = False  # each worker sees one GPU, as number 0
    signals: tuple[int, ...] = ENDING_SIGNALS  # ask the agent to end


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Which of the node's workers a process is."""

    worker: str
    local_rank: int
    num_restarts: int  # deaths of this node's workers before it was started
    master_port: int

    def files(self, directory: Path) -> WorkerFiles:
        return WorkerFiles(directory=directory / self.worker)


def worker_command(script: str, args: list[str], *, is_module: bool = False, is_program: bool = False) -> list[str]:
    """The command line of a worker: a Python script, a module, or a program as it is."""
    if is_program and is_module:
        raise UsageError("--module and --no-python at once", hint="give one of them")
    if is_program:
        return [script, *args]
    return [env.python() or sys.executable, "-u", *(["-m"] if is_module else []), script, *args]


def worker_environment(node: NodeSpec, place: Place, outer: Mapping[str, str]) -> dict[str, str]:
    """The agent's own environment, with what this worker must know on top."""
    ours = {
        env.COORDINATOR: node.coordinator_url,
        env.TOKEN_FILE: str(node.token_file),
        env.JOB: node.job,
        env.WORKER: place.worker,
        env.EVENTS: outer.get(env.EVENTS) or str(node.directory / "events.jsonl"),
        env.BOARD: str(place.files(node.directory).board),
    }
    if node.is_address_given:
        ours[env.ADDRESS] = node.address
    if node.num_workers > 1 and "OMP_NUM_THREADS" not in outer:
        ours["OMP_NUM_THREADS"] = "1"  # as torchrun does: else every worker takes all cores
    inherited = {name: value for name, value in outer.items() if name != env.TOKEN}  # the file says it
    return inherited | _torchrun_names(node, place, outer) | ours


def _torchrun_names(node: NodeSpec, place: Place, outer: Mapping[str, str]) -> dict[str, str]:
    rank, size = str(place.local_rank), str(node.num_workers)
    names = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "ROLE_RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": node.role,
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": node.address,
        "MASTER_PORT": str(place.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(place.num_restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(node.max_restarts),
        "TORCHELASTIC_RUN_ID": node.run_id or node.job,
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 opens the store: a new one for each attempt
        "TORCHELASTIC_ERROR_FILE": str(place.files(node.directory).error),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": outer.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    return names | (_virtual_local_rank(place, outer) if node.is_local_rank_virtual else {})


def _virtual_local_rank(place: Place, outer: Mapping[str, str]) -> dict[str, str]:
    """The worker's GPU, by number or by place in a list that was given, is the only one that it sees."""
    given = outer.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": str(place.local_rank)}
    devices = given.split(",")
    if place.local_rank >= len(devices):
        raise UsageError(
            f"CUDA_VISIBLE_DEVICES={given} has no device for local rank {place.local_rank}",
            hint="start fewer workers, or none with --virtual-local-rank",
        )
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": devices[place.local_rank].strip()}
