"""Messages about a job as a whole: create it, look at it, stop it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from everstep.wire.encoding import to_json, valid_texts
from everstep.wire.metrics import MAX_DEPTH, value_problems
from everstep.wire.policy import Policy, policy_problems

MAX_CONFIG_BYTES = 1 << 18


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpec:
    name: str = ""
    policy: Policy = field(default_factory=Policy)
    config: dict[str, Any] = field(default_factory=dict)  # the script and its arguments, or the job file; no secrets

    def problems(self) -> Iterator[str]:
        yield from policy_problems(self.policy)
        yield from value_problems(self.config, MAX_DEPTH)
        if (num_bytes := len(to_json(self.config))) > MAX_CONFIG_BYTES:
            yield f"the configuration has {num_bytes} bytes, more than {MAX_CONFIG_BYTES}"


def fitting_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """For people only: no job fails to start because of it."""
    spec = JobSpec(config=valid_texts(json.loads(to_json(dict(config)))))
    problem = next(spec.problems(), None)
    return spec.config if problem is None else {"left_out": problem}


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    now: float = 0.0  # the coordinator's time of day, for comparing clocks


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerView:
    worker: str
    status: str  # starting, waiting (newcomer), member, lost, left, sent (asked to go), dead
    reason: str
    agent: str
    pid: int
    step: int
    generation: int
    rank: int  # -1: none
    died_as: int = -1  # its rank when it was lost


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeView:
    agent: str
    address: str
    num_workers: int
    is_present: bool
    node_rank: int  # -1: it has no part in the attempt
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class JobView:
    """The job as people, the command line and tests see it."""

    job: str
    generation: int
    is_closed: bool
    is_stopped: bool
    is_finished: bool
    reason: str  # the last decision's sentence
    workers: list[WorkerView]
    attempt: int = -1  # the latest start of all workers together
    num_restarts: int = 0
    nodes: list[NodeView] = field(default_factory=list)
