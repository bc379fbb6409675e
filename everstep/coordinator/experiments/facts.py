"""An experiment and its trials as stored: rows as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everstep import wire
from everstep.wire import experiments

DELETED = "DELETED"
STOPPING = (wire.STOPPING_COMPLETED, wire.STOPPING_CANCELED, wire.STOPPING_KILLED, wire.STOPPING_ERROR)
LIVE = experiments.LIVE

MIXED = "several kinds"

DONE = "DONE"  # why a trial ends: its script said so, or `search.events.WHYS`


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    number: int
    request: str
    name: str
    description: str
    labels: tuple[str, ...]
    notes: str
    state: str
    reason: str
    spec: wire.ExperimentSpec
    kept: wire.CheckpointsKept
    created_at: float
    warm_start: Mapping[str, Any] = field(default_factory=dict)  # uuid, uri, step
    summary: Mapping[str, Any] = field(default_factory=dict)
    is_archived: bool = False
    needs_sweep: bool = False
    program_after: int = 0
    program_state: str = ""
    owner: str = ""  # a person's name; "": of a token without one
    created_by: str = ""  # the job of the trial whose script created it; "": a person did
    scheduling: wire.Scheduling = field(default_factory=wire.Scheduling)
    started_at: float | None = None
    ended_at: float | None = None
    ran_s: float = 0.0  # since it started, without pauses, until …
    runs_since: float | None = None  # … this time; None: it does not run

    @property
    def is_over(self) -> bool:
        return self.state not in LIVE


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    experiment: int
    number: int
    trial_id: int
    bracket: int
    hparams: Mapping[str, Any]
    seed: int
    created_at: float
    state: str = wire.QUEUED  # or how it ended
    reason: str = ""
    wish: str = wire.TRAIN  # or stop
    target_number: int = 0
    target: int | None = None
    length: int = 0
    latest: float | str | None = None
    best: float | None = None
    best_length: int = 0
    batches: int = 0
    ending: str = ""
    num_restarts: int = 0
    vacated: int = 0  # failures of assignments up to this number have been counted
    best_checkpoint: str = ""
    latest_checkpoint: str = ""
    kind: str = ""  # of machine: "" if it has not started, MIXED if it was trained on several kinds
    reuse_key: str = ""  # hash of all that its training depends on; "": no reuse
    reused: Mapping[str, Any] = field(default_factory=dict)  # what it took over from another trial: see `reuse`
    started_at: float | None = None
    ended_at: float | None = None
    log_matches: Sequence[Mapping[str, Any]] = ()  # of log policies, as `wire.LogMatch` has them

    @property
    def is_over(self) -> bool:
        return self.state in wire.ENDED

    @property
    def job(self) -> str:
        return wire.trial_job(self.experiment, self.number)

    @property
    def is_waiting(self) -> bool:
        """Whether it has reached its target, and the search has not decided yet."""
        has_work = self.wish == wire.STOP or bool(self.ending) or self.target is None or self.length < self.target
        return not (self.is_over or has_work)

    @property
    def must_end(self) -> bool:
        """Whether it must end as soon as it holds no slot."""
        return not self.is_over and (self.wish == wire.STOP or bool(self.ending))


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRecord:
    uuid: str
    job: str
    experiment: int
    trial: int
    uri: str
    step: int
    generation: int
    num_bytes: int
    metrics: Mapping[str, Any]
    metric: float | str | None  # the searcher's; None: not validated
    code: str
    created_at: float
    state: str = wire.COMPLETED
    digest: str = ""
