"""The settings of `everstep pool …`, each declared once. Imported by every `--help`: nothing heavy here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from everstep import env
from everstep.jobs.options import NODES, CoordinatorOptions
from everstep.settings import setting
from everstep.wire.pool import DEFAULT_POOL, LEAST_WEIGHT, MOST_PRIORITY, MOST_WEIGHT


@dataclass(frozen=True, kw_only=True)
class PoolJoinOptions(CoordinatorOptions):
    coordinator: str = setting(..., "URL of the coordinator", panel=NODES, metavar="URL", variables=(env.COORDINATOR,))
    pool: str = setting(DEFAULT_POOL, "Name of the pool", is_argument=True, metavar="[POOL]")
    slots: str = setting(
        "auto",
        "Slots of this machine: auto: one per GPU, or one per CPU if there is no GPU; gpu: one per GPU; cpu: one per "
        "CPU, and trials see no GPU; N: a number of slots",
        metavar="auto|gpu|cpu|N",
    )
    name: str | None = setting(None, "Name of this node, unique in the pool; default: the host name", metavar="NAME")
    folder: Path | None = setting(
        None, "Folder for the code and logs of trials; default: a folder for each node in EVERSTEP_HOME", metavar="DIR"
    )
    until: float | None = setting(
        None, "Leave at this time, in seconds since 1970 (`date +%s`); trials save first", metavar="TIME", least=0
    )
    patience: float = setting(
        0.0, "Leave after the coordinator has been away for this many seconds; 0: wait forever", metavar="S", least=0
    )
    parked_memory: float = setting(
        0.1,
        "Share of this machine's memory that may hold the last states of parked trials, which continue from there",
        least=0,
        most=1,
        metavar="SHARE",
    )


@dataclass(frozen=True, kw_only=True)
class PoolOptions(CoordinatorOptions):
    """Options of a command about pools: without a coordinator, it asks the local service."""

    coordinator: str | None = setting(
        None,
        "URL of the coordinator; default: the local service, if it is running",
        panel=NODES,
        metavar="URL",
        variables=(env.COORDINATOR, env.DET_MASTER),
    )
    json: bool = setting(False, "Print JSON instead of a table")


@dataclass(frozen=True, kw_only=True)
class PoolListOptions(PoolOptions):
    pool: str | None = setting(None, "Name of the pool; default: all pools", metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class AgentListOptions(PoolListOptions):
    pass


@dataclass(frozen=True, kw_only=True)
class AgentStateOptions(PoolOptions):
    nodes: tuple[str, ...] = setting((), "Names of the nodes", is_argument=True, metavar="[NODE]...")
    pool: str = setting(DEFAULT_POOL, "Name of the pool", metavar="NAME")
    all: bool = setting(False, "All nodes of the pool", also=("-a",))
    reason: str = setting("", "Reason to show to people who look at the pool", metavar="TEXT")


@dataclass(frozen=True, kw_only=True)
class QueueListOptions(PoolListOptions):
    pass


@dataclass(frozen=True, kw_only=True)
class QueueUpdateOptions(PoolOptions):
    experiment: int = setting(..., "The experiment's number", is_argument=True, metavar="ID", least=1)
    priority: int | None = setting(None, "Priority; smaller numbers go first", metavar="N", least=1, most=MOST_PRIORITY)
    weight: float | None = setting(
        None,
        "Weight among experiments of equal priority; 2 gets twice as many slots as 1",
        metavar="W",
        least=LEAST_WEIGHT,
        most=MOST_WEIGHT,
    )
    pool: str | None = setting(None, "Move the experiment to this pool", metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class PoolCheckOptions:
    file: Path = setting(..., "Pool file", metavar="FILE", is_argument=True)
    show: bool = setting(False, "Print what is submitted for each node")


@dataclass(frozen=True, kw_only=True)
class PoolNodesOptions:
    file: Path = setting(..., "Pool file", option="--file", metavar="FILE")
    folder: Path = setting(..., "Folder with the records of nodes", metavar="DIR")
    coordinator: str = setting(..., "URL of the coordinator", metavar="URL")
    token_file: Path = setting(..., "File with the coordinator's tokens", metavar="FILE")
    until_unused: bool = setting(False, "Release all nodes, and end, while no experiment of the pools is active")


@dataclass(frozen=True, kw_only=True)
class PoolUseOptions(PoolOptions):
    pool: str = setting(DEFAULT_POOL, "Name of the pool", metavar="NAME")
    days: int = setting(7, "Number of days to show, today included; days begin at midnight in UTC", least=1, most=366)
    csv: bool = setting(False, "Print CSV instead of a table")


@dataclass(frozen=True, kw_only=True)
class PoolStopOptions:
    pass


@dataclass(frozen=True, kw_only=True)
class TrialNodeOptions:
    folder: Path = setting(..., "Folder with the order", metavar="DIR")


@dataclass(frozen=True, kw_only=True)
class LocalServiceOptions:
    folder: Path = setting(..., "Folder of the service", metavar="DIR")
