"""Messages about datasets: leases of shards, and what is done of them.

A position counts samples through all epochs: position p is sample p % size of the order of epoch p // size.
The workers know which record that is (everstep.data's Permutation); the coordinator knows positions alone."""

from __future__ import annotations

from dataclasses import dataclass, field

STOP, SKIP = "stop", "skip"


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetSpec:
    """PUT …/datasets/{dataset}: register it, or find it as it is; with other numbers it is refused."""

    size: int  # samples
    batch_size: int
    epochs: int = 1
    shuffle: bool = False
    seed: int = 0
    minibatches_per_shard: int | None = None  # None: the policy's
    is_overlapping: bool = False  # an epoch may begin while samples of the one before are still leased
    on_bad_shard: str = STOP  # or SKIP: a shard that failed too often is left out, and listed


@dataclass(frozen=True, kw_only=True, slots=True)
class LeasePart:
    """Positions start to start + count of a lease."""

    lease: int
    start: int
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedPart:
    """A part that could not be processed, such as a file that cannot be read. Counts against its shard."""

    lease: int
    start: int
    count: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseRequest:
    """POST …/workers/{worker}/lease: report what is done, give back what is not needed, ask for more; renews too.

    Held while nothing is free but others hold leases. Repeated with the same number, it has no second effect."""

    incarnation: str
    dataset: str
    request: int  # 1, 2, …: counts this process's requests about this dataset
    generation: int = 0  # in whose steps the leases are used; 0: not in steps that workers take together
    settles: bool = False  # with this call, all that was used in steps committed before that generation is reported
    done: list[LeasePart] = field(default_factory=list)  # used in steps that all hold; also of workers that are gone
    returned: list[LeasePart] = field(default_factory=list)  # not used, and will not be
    failed: list[FailedPart] = field(default_factory=list)
    wants: int = 1  # so many more leases
    batch_s: float = 0.0  # so long a batch takes here; 0: not known yet
    wait_s: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    lease: int  # never given twice in a dataset
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
    leases: list[Lease]  # all that this worker holds now; what is not among them is not its own any more
    refused: list[RefusedPart]
    give_back: list[int]  # leases of which others need what has not been begun: return it
    is_end: bool  # all samples of all epochs are done
    reason: str  # why fewer leases were given than wanted; else empty
    is_stopped: bool = False  # the job is over


@dataclass(frozen=True, kw_only=True, slots=True)
class BadShard:
    """A shard that failed."""

    start: int  # position
    failures: int
    reason: str  # of the last time
    skipped: list[list[int]]  # [start, stop] of what will never be done


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
    """GET …/datasets."""

    datasets: list[DatasetView]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardCheckpoint:
    """GET …/datasets/{dataset}/checkpoint: what is done, to be saved together with the model."""

    size: int
    shuffle: bool
    seed: int
    done: list[list[int]]  # [start, stop] of positions, sorted and merged
    bad_shards: list[BadShard] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreShards:
    """POST …/datasets/{dataset}/restore: from now on this is done and nothing else. All leases are void."""

    request: str  # random: the same again has no second effect
    checkpoint: ShardCheckpoint
