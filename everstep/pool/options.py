"""The settings of `everstep pool …`, each declared once. Imported by every `--help`: nothing heavy here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from everstep import env
from everstep.jobs.options import NODES, CoordinatorOptions
from everstep.settings import setting

DEFAULT_POOL = "default"


@dataclass(frozen=True, kw_only=True)
class PoolJoinOptions(CoordinatorOptions):
    coordinator: str = setting(..., "URL of the coordinator", panel=NODES, metavar="URL", variables=(env.COORDINATOR,))
    slots: str = setting(
        "auto", "Number of trials that may run here at once; auto: one per GPU, otherwise one per CPU", metavar="N"
    )
    pool: str = setting(DEFAULT_POOL, "Name of the pool", metavar="NAME")
    name: str | None = setting(None, "Name of this node, unique in the pool; default: the host name", metavar="NAME")
    folder: Path | None = setting(
        None, "Folder for the code and logs of trials; default: a folder for each node in EVERSTEP_HOME", metavar="DIR"
    )


@dataclass(frozen=True, kw_only=True)
class PoolListOptions(CoordinatorOptions):
    coordinator: str | None = setting(
        None,
        "URL of the coordinator; default: the local service, if it is running",
        panel=NODES,
        metavar="URL",
        variables=(env.COORDINATOR,),
    )
    pool: str = setting(DEFAULT_POOL, "Name of the pool", metavar="NAME")
    json: bool = setting(False, "Print JSON instead of a table")


@dataclass(frozen=True, kw_only=True)
class PoolStopOptions:
    pass


@dataclass(frozen=True, kw_only=True)
class TrialNodeOptions:
    folder: Path = setting(..., "Folder with the order", metavar="DIR")


@dataclass(frozen=True, kw_only=True)
class LocalServiceOptions:
    folder: Path = setting(..., "Folder of the service", metavar="DIR")
