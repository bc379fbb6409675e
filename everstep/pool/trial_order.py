"""What a pool's agent and the process of a trial know of each other: the order, the sockets, and how it ended.

Imports little: the agent needs nothing of what runs a trial."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep import wire
from everstep.launcher import run_record
from everstep.storage import private_file

ORDER, END = "order.json", "end.txt"
SAVER, DATA = "node.saver", "node.data"  # in the folder of the pool's agent: sockets for all trials
KEEP_WARM_S = 60.0  # the process that forks workers stays this long after the last trial
LOST = 75  # not its own failure
UNFIT = 76  # this node could not even start it: a full disk, no code, no process left


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialOrder:
    """What the pool's agent writes into the folder of an assignment."""

    assignment: dict[str, Any]  # a wire.AssignmentOrder
    url: str
    agent: str  # the pool's
    pool_folder: str  # of the pool's agent: code, and working folders
    slot_memory_bytes: int = 0
    slot_cpus: int = 0
    gpu: str = ""  # the only one that the worker sees

    def write(self, folder: Path) -> None:
        private_file.write(folder / ORDER, wire.to_json(self))

    @classmethod
    def read(cls, folder: Path) -> TrialOrder:
        return cls(**json.loads((folder / ORDER).read_bytes()))


def last_words(folder: Path) -> str:
    """Why it ended, if it gave a reason."""
    try:
        return (folder / END).read_text()
    except OSError:
        pass
    record = run_record.read(folder)
    return (record.error or record.reason) if record is not None else ""
