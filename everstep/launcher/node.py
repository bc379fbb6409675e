"""What an agent is asked to run on its node, and the environment that each worker gets: torchrun's names and ours.

Pure: values in, values out."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from everstep import env
from everstep.errors import UsageError
from everstep.launcher.node_saver import NodeSaver
from everstep.launcher.worker_files import WorkerFiles
from everstep.wire import AttemptOrder, Fitness

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
    node_rank: int = -1  # asked for by the user; -1: in order of arrival
    heartbeat_s: float = 1.0
    shutdown_s: float = 30.0  # from SIGTERM to SIGKILL
    is_address_given: bool = False  # by the user; else each worker finds it by itself
    role: str = "default"
    run_id: str | None = None  # what workers see as TORCHELASTIC_RUN_ID; None: the job's id
    is_local_rank_virtual: bool = False  # each worker sees one GPU, as number 0
    signals: tuple[int, ...] = ENDING_SIGNALS  # ask the agent to end
    fitness: Fitness | None = None  # what its check found, if there was one
    hidden: tuple[str, ...] = field(default=(), repr=False)  # values of secrets, masked in what is shown and sent
    node_saver: NodeSaver | None = None  # if the node has one for several jobs …
    node_data: Path | None = None  # … and likewise, a socket for data that is loaded once


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerRanks:
    """Which of the job's workers a process is, by torchrun's counting."""

    order: AttemptOrder  # the attempt that it is part of
    local_rank: int
    worker: str  # the order's, or the one that replaces it
    num_restarts: int  # of the whole job before it was started

    @classmethod
    def of(cls, order: AttemptOrder, local_rank: int) -> WorkerRanks:
        worker = order.workers[local_rank]
        return cls(order=order, local_rank=local_rank, worker=worker, num_restarts=order.num_restarts)

    def files(self, directory: Path) -> WorkerFiles:
        return WorkerFiles(directory=directory / self.worker)


def worker_command(script: str, args: list[str], *, is_module: bool = False, is_program: bool = False) -> list[str]:
    """The command line of a worker: a Python script, a module, or a program as it is."""
    if is_program and is_module:
        message = "--module and --no-python exclude each other"
        raise UsageError(message, hint="give one of them", code="module-and-no-python")
    if is_program:
        return [script, *args]
    return [env.value("PYTHON_EXEC") or sys.executable, "-u", *(["-m"] if is_module else []), script, *args]


def common_environment(outer: Mapping[str, str], num_workers: int) -> dict[str, str]:
    """Variables that all workers of a node get, unless they are set already."""
    ours = {"PYTHONFAULTHANDLER": "1"}  # stacks of those that crash or hang
    if num_workers > 1:
        ours["OMP_NUM_THREADS"] = "1"  # as torchrun does: else every worker takes all cores
    return {**ours, **outer}


def worker_environment(
    node: NodeSpec,
    place: WorkerRanks,
    outer: Mapping[str, str],
    *,
    saver: Path | None = None,
    data: Path | None = None,
) -> dict[str, str]:
    """The agent's own environment, with what this worker must know on top."""
    ours = {
        env.COORDINATOR: node.coordinator_url,
        env.TOKEN_FILE: str(node.token_file),
        env.JOB: node.job,
        env.WORKER: place.worker,
        env.EVENTS: outer.get(env.EVENTS) or str(node.directory / "events.jsonl"),
        env.MAX_WORKERS: str(place.order.max_workers),
        env.BOARD: str(place.files(node.directory).board),
    }
    if node.is_address_given:
        ours[env.ADDRESS] = node.address
    if saver is not None:
        ours[env.SAVER] = str(saver)
    if data is not None:
        ours[env.NODE_DATA] = str(data)
    if node.node_saver is not None:
        ours |= node.node_saver.variables
    # The file says it; what other agents keep; another's job.
    not_theirs = (env.TOKEN, env.SAVER, env.NODE_SAVER, env.SAVER_OWNER, env.NODE_DATA, env.REPORT_AS)
    inherited = {name: value for name, value in outer.items() if name not in not_theirs}
    return common_environment(inherited, node.num_workers) | _torchrun_names(node, place, outer) | ours


def _torchrun_names(node: NodeSpec, place: WorkerRanks, outer: Mapping[str, str]) -> dict[str, str]:
    order = place.order
    rank, size = str(order.first_rank + place.local_rank), str(order.size)
    names = {
        "RANK": rank,
        "LOCAL_RANK": str(place.local_rank),
        "ROLE_RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": str(node.num_workers),
        "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": node.role,
        "GROUP_RANK": str(order.node_rank),
        "GROUP_WORLD_SIZE": str(order.num_nodes),
        "MASTER_ADDR": order.master_address,
        "MASTER_PORT": str(order.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(place.num_restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(order.max_restarts),
        "TORCHELASTIC_RUN_ID": node.run_id or node.job,
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 opens the store: a new one for each attempt
        "TORCHELASTIC_ERROR_FILE": str(place.files(node.directory).error),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": outer.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    return names | (_virtual_local_rank(place, outer) if node.is_local_rank_virtual else {})


def _virtual_local_rank(place: WorkerRanks, outer: Mapping[str, str]) -> dict[str, str]:
    """The worker's GPU, by number or by place in a list that was given, is the only one that it sees."""
    given = outer.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": str(place.local_rank)}
    devices = given.split(",")
    if place.local_rank >= len(devices):
        problem = f"CUDA_VISIBLE_DEVICES={given} has no device for local rank {place.local_rank}"
        hint = "start fewer workers, or none with --virtual-local-rank"
        raise UsageError(problem, hint=hint, code="too-few-visible-devices")
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": devices[place.local_rank].strip()}
