"""What an agent is asked to run on its node, and the environment that each worker gets: torchrun's names and ours.

Values in, values out."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep import env
from everstep.errors import UsageError


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Which of the node's workers a process is."""

    worker: str
    local_rank: int
    num_restarts: int  # deaths of this node's workers before it was started
    master_port: int

    def log(self, directory: Path) -> Path:
        return directory / f"{self.worker}.log"

    def board(self, directory: Path) -> Path:
        return directory / f"{self.worker}.board"


def worker_command(script: str, args: list[str], *, is_module: bool = False, is_program: bool = False) -> list[str]:
    """The command line of a worker: a Python script, a module, or a program as it is."""
    if is_program:
        return [script, *args]
    return [sys.executable, "-u", *(["-m"] if is_module else []), script, *args]


def num_processes(text: str, *, num_gpus: int | None = None) -> int:
    """`--nproc-per-node` as torchrun reads it: a number, or what the machine has."""
    if num_gpus is None:
        num_gpus = num_gpu_files()
    counts = {"gpu": num_gpus, "cpu": os.cpu_count() or 1, "auto": num_gpus or os.cpu_count() or 1}
    number = counts[text] if text in counts else int(text) if text.isdigit() else 0
    if number < 1:
        raise UsageError(f"--nproc-per-node={text} gives no worker", hint="a number from 1, or auto, gpu, cpu")
    return number


def num_gpu_files() -> int:
    """How many GPUs the machine has; torch may be allowed to use fewer."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def worker_environment(node: NodeSpec, place: Place, outer: Mapping[str, str]) -> dict[str, str]:
    """The agent's own environment, with what this worker must know on top."""
    ours = {
        env.COORDINATOR: node.coordinator_url,
        env.TOKEN_FILE: str(node.token_file),
        env.JOB: node.job,
        env.WORKER: place.worker,
        env.EVENTS: outer.get(env.EVENTS) or str(node.directory / "events.jsonl"),
        env.BOARD: str(place.board(node.directory)),
    }
    if node.is_address_given:
        ours[env.ADDRESS] = node.address
    if node.num_workers > 1 and "OMP_NUM_THREADS" not in outer:
        ours["OMP_NUM_THREADS"] = "1"  # as torchrun does: else every worker takes all cores
    inherited = {name: value for name, value in outer.items() if name != env.TOKEN}  # the file says it
    return inherited | _torchrun_names(node, place) | ours


def _torchrun_names(node: NodeSpec, place: Place) -> dict[str, str]:
    rank, size = str(place.local_rank), str(node.num_workers)
    return {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "ROLE_RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": "default",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": node.address,
        "MASTER_PORT": str(place.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(place.num_restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(node.max_restarts),
        "TORCHELASTIC_RUN_ID": node.job,
    }
