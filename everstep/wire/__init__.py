"""Every message between worker, agent and coordinator, as frozen values.

FastAPI validates these same classes on the way in; `to_json` and `from_json` serve the clients.
All under `/v1/jobs/{job}`; every call carries a bearer token. Knows nothing of HTTP or torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

REALM = "everstep"  # what a coordinator names with a 401: by this it is told from other programs


def to_json(message: Any) -> bytes:
    return _ENCODER.encode(message).encode()


def from_json(kind: type[T], body: bytes | dict[str, Any]) -> T:
    """Build `kind` from a reply, ignoring fields that a newer coordinator may have added."""
    values = body if isinstance(body, dict) else json.loads(body)
    known, nested = _shape(kind)  # type: ignore[arg-type]
    values = {name: value for name, value in values.items() if name in known}
    for name, (is_list, inner) in nested.items():
        if name in values:
            value = values[name]
            values[name] = [from_json(inner, each) for each in value] if is_list else from_json(inner, value)
    return kind(**values)


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def _as_dict(message: Any) -> dict[str, Any]:
    """Of one level, without copies: `asdict` took longer than all else that a reply needs."""
    return {name: getattr(message, name) for name in _names(type(message))}  # type: ignore[arg-type]


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_as_dict)


@cache
def _shape(kind: type[Any]) -> tuple[frozenset[str], dict[str, tuple[bool, type[Any]]]]:
    """The fields of a message, and which of them hold a message or a list of messages."""
    hints, nested = get_type_hints(kind), dict[str, tuple[bool, type[Any]]]()
    for name, hint in hints.items():
        is_list = get_origin(hint) is list
        inner = get_args(hint)[0] if is_list else hint
        if isinstance(inner, type) and is_dataclass(inner):
            nested[name] = (is_list, inner)
    return frozenset(f.name for f in fields(kind)), nested


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The settings of a job that the coordinator decides by. All times in seconds."""

    start_nodes: int = 1  # the first start waits for so many …
    start_workers: int = 1  # … and the first generation for so many …
    start_s: float = 60.0  # … for so long after the first arrival, then starts with min_workers or more
    min_workers: int = 1  # below this the job waits
    max_workers: int | None = None  # more are spares; never more than the job's micro-batches
    heartbeat_s: float = 1.0  # a worker's watch call is held at most this long, then asked again
    lease_s: float = 3.0  # no proof of life for this long: lost
    arrive_s: float = 2.0  # after a closing, whoever is alive has this long to arrive
    stall_s: float = 5.0  # all wait for each other for this long: the network is cut between them
    hang_s: float = 600.0  # one computes for this long (or 10 of its longest steps) while others wait: hung
    fence_s: float = 600.0  # a worker that cannot reach the coordinator stops by itself after this long
    micro_batch_deaths: int = 3  # a micro-batch that so many workers died in stops the job
    min_nodes: int = 1  # workers are started when so many nodes are there; if it is less than max_nodes, …
    max_nodes: int | None = None  # … jobs that regroup wait below it, too. More than max_nodes are spares
    last_call_s: float = 1.0  # with fewer than max_nodes, this long is waited for more
    join_s: float = 600.0  # fewer than min_nodes for this long: the job stops
    undecided_s: float = 5.0  # workers that have not announced themselves by then are taken for classic ones
    max_restarts: int = 0  # so many workers are replaced, or restarted all together, in the whole job
    silence_s: float | None = None  # classic workers that all print nothing for this long hang; None: never
    minibatches_per_shard: int = 8  # of a dataset that was registered without a number of its own
    shard_lease_s: float = 60.0  # a lease is void when its worker gave no sign of life for this long
    shard_failures: int = 3  # a shard that failed so many times stops the job, or is skipped
    straggler_factor: float = 4.0  # a lease so many times older than the usual duration may be taken over


def policy_problems(policy: Policy) -> Iterator[str]:
    """What its types alone cannot say."""
    if policy.max_workers is not None and policy.max_workers < policy.min_workers:
        yield f"max_workers={policy.max_workers} is less than min_workers={policy.min_workers}"
    if policy.max_nodes is not None and policy.max_nodes < policy.min_nodes:
        yield f"max_nodes={policy.max_nodes} is less than min_nodes={policy.min_nodes}"
    for name in ("heartbeat_s", "lease_s", "shard_lease_s"):
        if getattr(policy, name) <= 0:
            yield f"{name} must be more than 0"
    if policy.lease_s <= policy.heartbeat_s:
        yield f"lease_s={policy.lease_s} is not longer than heartbeat_s={policy.heartbeat_s}"
    if policy.straggler_factor < 1:
        yield f"straggler_factor={policy.straggler_factor} is less than 1: every lease would be taken over"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpec:
    """PUT /v1/jobs/{job}: create it, or find it as it is."""

    name: str = ""
    policy: Policy = field(default_factory=Policy)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """POST …/stop: end the job for this reason; everybody is told."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """GET /v1/health: it is up."""

    now: float = 0.0  # the coordinator's time of day, for comparing clocks


# --- agents ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerState:
    """What an agent sees of one of its workers from outside."""

    worker: str
    is_running: bool  # False: stopped (SIGSTOP, debugger); a running process is alive even if its threads are busy
    step: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitness:
    """What a node's check found before the start. None: not measured."""

    gflops: float | None = None  # of its slowest device
    mb_per_s: float | None = None  # of its best way to another node
    failure: str = ""  # why it is no use at all


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentReport:
    """POST …/agents/{agent}/report: heartbeat and long-poll in one; held until there are orders, at most wait_s."""

    incarnation: str
    node: str
    workers: list[WorkerState]
    wait_s: float = 1.0
    num_workers: int = 0  # how many it would start; 0: it takes part in no attempt
    address: str = ""  # where other nodes reach it …
    probe_port: int = 0  # … and can try whether they do
    node_rank: int = -1  # wished by the user; -1: in order of coming
    free_port: int = 0  # rank 0 of the next attempt could listen here
    unreachable: list[str] = field(default_factory=list)  # agents of the attempt that it cannot reach
    silent_s: float = 0.0  # since any of its workers printed or did anything
    peers_seen: int = 0  # the number of the peers that it was told last
    fitness: Fitness | None = None  # None: it was not checked


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentLeave:
    """POST …/agents/{agent}/leave: it ends in good order, with all its workers."""

    incarnation: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class KillOrder:
    worker: str
    reason: str
    wants_stacks: bool = False  # take stack traces first: it is alive but not getting on


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """Another node of the attempt."""

    agent: str
    address: str
    probe_port: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptOrder:
    """One node's part in a start of all workers together: start these, after all earlier ones have ended."""

    number: int  # of the attempt; the first is 0
    workers: list[str]  # by local rank
    node_rank: int
    num_nodes: int
    first_rank: int
    size: int
    master_address: str
    master_port: int
    num_restarts: int  # of the whole job so far
    max_restarts: int
    max_workers: int  # the most that the job may ever have
    notes: list[str] = field(default_factory=list)  # on nodes that were left out, and why


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentOrders:
    kill: list[KillOrder]
    is_ended: bool  # all workers finished, or the job was stopped
    reason: str  # why it was stopped; empty after a good end
    attempt: int = -1  # the latest; workers of earlier ones must end
    is_attempt_closed: bool = False  # its own workers must end too
    wants_stacks: bool = False  # … after showing where they are: they hang
    start: list[AttemptOrder] = field(default_factory=list)  # this node's part of it, if it has one
    past: list[str] = field(default_factory=list)  # its workers of attempts that are over, as far as they may still be
    is_regrouping: bool = False  # the workers form generations: only the dead are replaced
    why: str = ""  # why the attempt ended, or why this node has no part in it
    peers_seen: int = 0  # the number of the attempt's peers; 0: it has no part …
    peers: list[Peer] = field(default_factory=list)  # … and they themselves, unless the report named that number


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotRequest:
    """POST …/workers: reserve a worker id. The same request id gets the same worker id."""

    agent: str
    request: str
    replaces: str = ""  # a worker that ended: counts as a restart, unless the coordinator had it ended


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    worker: str  # "w0", "w1", …: never given twice in a job; empty: no restart is left
    num_restarts: int = 0  # of the whole job so far
    is_restart: bool = False  # it counts as one


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerExit:
    """POST …/workers/{worker}/exited, by its agent: the process is gone for certain."""

    exit_code: int  # negative: ended by that signal
    step: int = 0
    micro_batch: int = -1  # the micro-batch it was computing; -1: none
    was_asked: bool = False  # by its agent: it would have gone on


# --- workers --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Announce:
    """POST …/workers/{worker}/announce: the process is up and will form or join a generation."""

    incarnation: str  # random, new for each process
    pid: int
    address: str  # where peers reach it
    store_port: int  # its key-value store; rank 0's is used to form a group
    probe_port: int  # accepts and closes connections, so that peers can tell whether they reach it


@dataclass(frozen=True, kw_only=True, slots=True)
class Announced:
    is_newcomer: bool  # a generation exists already: start alone, join at your first step
    policy: Policy


COMPUTING, WAITING, OUTSIDE = "computing", "waiting", "outside"


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """POST …/workers/{worker}/watch: heartbeat and long-poll in one; held while nothing changed since `seen`."""

    incarnation: str
    generation: int
    seen: int
    step: int
    phase: str  # COMPUTING a micro-batch, WAITING for peers inside a step, OUTSIDE a step
    phase_s: float  # how long already
    longest_step_s: float
    longest_wait_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    seen: int  # to be sent with the next watch
    is_closed: bool  # the generation asked about is over: break the group and arrive
    reason: str
    must_probe: bool  # arrive with the list of members that cannot be reached
    newcomers: int  # so many wait to be let in: say so in the next pulse
    leavers: dict[str, int]  # members that asked to leave, and after which step; whoever goes on past it says so
    is_stopped: bool  # the job is over, for `reason` …
    is_finished: bool = False  # … and ended well
    generation: int = 0  # the latest


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrive:
    """POST …/workers/{worker}/arrive: ready for the next generation. Held until it is formed, else answered `wait`."""

    incarnation: str
    generation: int  # the last one this worker was in; 0: none
    settled: int  # the last generation in which it held the state; 0: never
    step: int  # committed steps
    max_workers: int | None  # the job's micro-batches: more members would have nothing to do
    unreachable: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrived:
    is_formed: bool
    is_stopped: bool  # the job is over, for `reason` …
    reason: str
    is_finished: bool = False  # … and ended well
    generation: int = 0
    rank: int = 0
    size: int = 0
    store_address: str = ""  # rank 0's
    store_port: int = 0
    continues: int = 0  # whoever leads must have settled in this generation or a later one


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """POST …/workers/{worker}/broken: a collective or the forming of the group failed; the generation is closed."""

    incarnation: str
    generation: int
    reason: str
    must_probe: bool = False
    is_fatal: bool = False  # the workers do not fit together: the job is stopped


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """POST …/workers/{worker}/settled: it holds the state of this generation."""

    incarnation: str
    generation: int
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Leave:
    """POST …/workers/{worker}/leave: wants to end after its committed step. Held until released, else asked again.

    Released when every member asked to leave, or when the next generation, without it, has settled. If one of them
    leaves by itself the job is finished; if all were asked to (a preemption), it waits for other workers."""

    incarnation: str
    generation: int
    step: int
    reason: str
    is_asked: bool = False  # by SIGTERM: it would have gone on


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    is_released: bool
    is_closed: bool  # its generation is over and it is needed once more: arrive, serve the state, then leave again
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    worker: str
    rank: int
    address: str
    probe_port: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationView:
    """GET …/generations/{generation}."""

    generation: int
    is_closed: bool
    reason: str
    members: list[Member]


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
    """GET /v1/jobs/{job}: what people, the command line and tests look at."""

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


# --- shards ---------------------------------------------------------------------------------------
#
# A position counts samples through all epochs: position p is sample p % size of the order of epoch p // size.
# Which record that is, the workers know (everstep.data's Permutation); the coordinator knows positions alone.

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


# --- metrics --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricReport:
    """What a fit has found out at some batch. Of one kind and batch, the last word counts."""

    kind: str  # training, validation, checkpoint, …
    batches: int
    time: float  # of day, where it was found out
    epochs: int | None = None  # finished ones; None: not known
    records: int | None = None
    metrics: dict[str, Any] = field(default_factory=dict)  # finite numbers, null, texts; lists and objects of them
    facts: dict[str, Any] = field(default_factory=dict)  # whatever else there is to say


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricReports:
    """POST …/metrics: keep these; durable before the reply."""

    reports: list[MetricReport]


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsView:
    """GET …/metrics?since=…&limit=…: what was kept after `since`, oldest first; so many of the last if negative."""

    reports: list[MetricReport]
    last: int  # to be given as `since` for what comes after
