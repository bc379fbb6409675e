"""Messages about datasets: leases of shards, and what is done of them.

A position counts samples through all epochs: position p is sample p % size of the order of epoch p // size.
The workers know which record that is (everstep.data's Permutation); the coordinator knows positions alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from everstep.wire.bounds import MAX_INT, Amount, Bounds, Count, Name, OneOf, Positive, Whole

STOP, SKIP = "stop", "skip"
MOST_LEASES = 64  # that one call may ask for …
MOST_PARTS = 8192  # … and parts that it may bring
_PARTS = Bounds(max_length=MOST_PARTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetSpec:
    size: Positive  # samples
    batch_size: Positive
    epochs: Positive = 1
    shuffle: bool = False
    seed: Count = 0
    minibatches_per_shard: Positive | None = None  # None: the policy's
    is_overlapping: bool = False  # an epoch may begin while samples of the one before are still leased
    on_bad_shard: Annotated[str, OneOf(STOP, SKIP)] = STOP  # SKIP: leave out a shard that failed too often, list it

    def problems(self) -> Iterator[str]:
        if self.size * self.epochs > MAX_INT:
            yield f"size={self.size} times epochs={self.epochs} is more than 2^53"


@dataclass(frozen=True, kw_only=True, slots=True)
class LeasePart:
    """Positions start to start + count of a lease."""

    lease: Count
    start: Count
    count: Positive


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedPart:
    """A part that could not be processed, such as a file that cannot be read. Counts against its shard."""

    lease: Count
    start: Count
    count: Positive
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseRequest:
    """Repeated with the same number, it has no second effect. Also renews the worker's leases."""

    incarnation: Name
    dataset: str
    request: Positive  # 1, 2, …: counts this process's requests about this dataset
    generation: Count = 0  # in whose steps the leases are used; 0: not in steps that workers take together
    settles: bool = False  # this call completes the reports of all steps committed before that generation
    done: Annotated[list[LeasePart], _PARTS] = field(default_factory=list)  # used in committed steps, by any worker
    returned: Annotated[list[LeasePart], _PARTS] = field(default_factory=list)  # not used, and will not be
    failed: Annotated[list[FailedPart], _PARTS] = field(default_factory=list)
    wants: Annotated[int, Bounds(ge=0, le=MOST_LEASES)] = 1  # additional leases
    batch_s: Amount = 0.0  # time per batch on this worker; 0: not known yet
    wait_s: Amount = 1.0

    def problems(self) -> Iterator[str]:
        if self.settles and not self.generation:
            yield "settles=true needs a generation"
        if (number := len(self.done) + len(self.returned) + len(self.failed)) > MOST_PARTS:
            yield f"{number} parts are more than {MOST_PARTS}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    lease: int  # never used twice in a dataset
    epoch: int
    start: int  # positions
    stop: int
    left: list[list[int]]  # [start, stop] of what has not been reported as done


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedPart:
    """A part that did not count, and why. If `is_done`, it had been reported before."""

    lease: int
    start: int
    count: int
    reason: str
    is_done: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Leased:
    leases: list[Lease]  # all that this worker holds now; any other lease is not its own
    refused: list[RefusedPart]
    give_back: list[int]  # leases whose remaining samples others need: return the rest
    is_end: bool  # all samples of all epochs are done
    reason: str  # why fewer leases were granted than wanted; else empty
    is_stopped: bool = False  # the job is over


@dataclass(frozen=True, kw_only=True, slots=True)
class BadShard:
    """A shard that failed."""

    start: Count  # position
    failures: Count
    reason: str  # of the last time
    skipped: list[list[Whole]]  # [start, stop] of what will never be done


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochView:
    epoch: int
    done: int
    leased: int  # and not done yet
    waiting: int  # to be leased again
    skipped: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetView:
    dataset: str
    spec: DatasetSpec
    done: int  # positions, of epochs x size
    is_end: bool
    epochs: list[EpochView]  # those that have begun and not ended
    bad_shards: list[BadShard]
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Datasets:
    datasets: list[DatasetView]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardCheckpoint:
    """What is done, to be saved together with the model."""

    size: Positive
    shuffle: bool
    seed: Count
    done: list[list[Whole]]  # [start, stop] of positions, sorted and merged
    bad_shards: list[BadShard] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreShards:
    request: Name  # random: the same again has no second effect
    checkpoint: ShardCheckpoint
