"""Messages between a trial and its experiment, and about checkpoints.

A trial trains to a target, validates, reports, saves, and asks what to do next. Targets have numbers that count up:
a repeated question gets the same answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from everstep.wire.bounds import MAX_NAME, Amount, Bounds, Count, Name, OneOf
from everstep.wire.metrics import Value

TRAIN = "train"  # to `length`
WAIT = "wait"  # the search has not decided: ask again
STOP = "stop"  # end well: the trial is over
PARK = "park"  # leave as if asked to: the state is saved, and the trial continues later

INVALID_HP = "INVALID_HP"

PARTIALLY_DELETED = "PARTIALLY_DELETED"  # state of a checkpoint that has lost some of its files


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetRequest:
    seen: Count = 0  # the number of the last target that was reached; 0: none. Held while there is none after it
    wait_s: Amount = 1.0  # the call may be held this long


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialTarget:
    number: int  # from 1
    wish: str  # train, wait, stop, park
    length: int | None  # the total length to train to; None: to the end of the script
    unit: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialResult:
    """A validation, at any length. The same length again changes nothing."""

    length: Count  # in the search's unit
    metric: Value
    batches: Count = 0
    digest: Name = ""  # of the weights, if it was computed
    is_planned: bool = True  # the script validates here whatever its targets are


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialResults:
    """All of a trial, by length."""

    results: list[TrialResult]
    targets: list[int | None]  # that the search gave it, in order; None: the end of the script


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyRequest:
    """Train a trial again, from its beginning, to the same lengths. A request that is repeated returns the experiment
    it created."""

    request: Annotated[str, Bounds(min_length=1, max_length=MAX_NAME)]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialKept:
    """The result is durable."""

    number: int  # of the target now
    wish: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialEnd:
    """The script says that its trial is over: INVALID_HP, or nothing if it ended well before its target."""

    why: Annotated[str, OneOf("", INVALID_HP)] = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointReport:
    """A checkpoint has become durable."""

    uuid: Name
    uri: Annotated[str, Bounds(max_length=4096)]  # where its step is found
    step: Count
    generation: Count = 0
    num_bytes: Count = 0
    metrics: Annotated[dict[Name, Value], Bounds(max_length=MAX_NAME)] = field(default_factory=dict)
    code: Name = ""  # SHA-256 of its code
    digest: Name = ""  # of the weights, if it was computed


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisteredAs:
    """A model's version that a checkpoint is."""

    model: int
    name: str  # of the model
    version: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    uuid: str
    uri: str
    step: int
    job: str
    experiment: int  # 0: none
    trial: int  # 0: none
    metric: Value | None  # the searcher's, if it was validated at that step
    metrics: dict[str, Value]
    state: str  # COMPLETED, PARTIALLY_DELETED, DELETED
    num_bytes: int
    created_at: float
    digest: str = ""  # of the weights, if it was computed
    metadata: dict[str, Any] = field(default_factory=dict)  # what people write on it
    registered: list[RegisteredAs] = field(default_factory=list)  # as these, it is kept


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointList:
    checkpoints: list[SavedCheckpoint]
    num_found: int
