"""The settings of a job that the coordinator decides by, each declared once.

Options of `everstep run`, keys of the job file, validation and docs/configuration.md are read from here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from everstep.settings import problems_of, setting

_SHARD = "[shard](concepts/shards.md)"
_CLASSIC = "[classic](concepts/words.md)"
_FENCING = "[fencing](assumptions.md#fencing-never-two-histories)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The settings of a job that the coordinator decides by. All times in seconds."""

    start_nodes: int = setting(
        1, "Wait for this many nodes at the first start, up to `start_s`", option="--nnodes", least=1
    )
    start_workers: int = setting(
        1, "Wait for this many workers before the first generation", option="--nproc-per-node", least=1
    )
    start_s: float = setting(
        60.0,
        "Wait this long for all workers at the start",
        details="The time counts from the first arrival; after it, the job starts with at least `min_workers`",
        least=0,
        section="elastic",
    )
    min_workers: int = setting(1, "Pause the job below this number of workers", least=1, section="elastic")
    max_workers: int | None = setting(
        None,
        "Keep workers beyond this number as spares",
        details="A generation never has more members than the job has micro-batches",
        least=1,
        section="elastic",
    )
    heartbeat_s: float = setting(
        1.0,
        "Interval between heartbeats of agents, and of workers that no agent vouches for",
        details="With more than 500 nodes, agents report less often, but at least three times per `lease_s`",
        above=0,
        section="health",
    )
    lease_s: float = setting(
        3.0,
        "Declare a worker lost after this long without proof of life",
        details="The proof may come from the worker or its agent. Must be longer than `heartbeat_s`",
        above=0,
        section="health",
    )
    arrive_s: float = setting(
        2.0,
        "After a loss, wait this long for survivors to arrive",
        details="A survivor that is computing a micro-batch gets up to `hang_s`",
        least=0,
        section="elastic",
    )
    stall_s: float = setting(
        5.0,
        "Assume a network split once all members have waited for each other this long",
        details="The wait must also exceed 5 times the longest wait so far. Before the first step the limit is 6 times "
        "as long",
        least=0,
        section="health",
    )
    hang_s: float = setting(
        600.0,
        "Kill a worker that computes this long while all others wait",
        details="The time must also exceed 10 times its longest step",
        least=0,
        section="health",
    )
    fence_s: float = setting(
        600.0,
        "Stop a worker that has been cut off from the coordinator this long",
        details=f"If all members are unreachable, other workers continue only after this time ({_FENCING})",
        least=0,
        section="elastic",
    )
    micro_batch_deaths: int = setting(
        3, "Stop the job once a micro-batch has killed this many workers", least=1, section="elastic"
    )
    min_nodes: int = setting(
        1,
        "Start workers once this many nodes are present",
        details="If it is less than `max_nodes`, a job that regroups also pauses below it",
        option="--nnodes",
        least=1,
    )
    max_nodes: int | None = setting(
        None,
        "Keep nodes beyond this number as spares",
        details="`everstep run` without `--nnodes` sets no limit: an `everstep join` adds a node",
        option="--nnodes",
        least=1,
    )
    last_call_s: float = setting(
        1.0,
        "Wait this long for one more node before a start",
        details="Applies while fewer than `max_nodes` are present; nodes that failed their check count as present",
        least=0,
        section="elastic",
    )
    join_s: float = setting(
        600.0, "Stop the job after this long with fewer than `min_nodes`", least=0, section="elastic"
    )
    undecided_s: float = setting(
        5.0,
        "Treat workers that have not joined after this long as classic",
        details=f"They do not use ElasticTrainer. A node that joins a {_CLASSIC} job restarts all workers",
        least=0,
        section="elastic",
    )
    max_restarts: int = setting(
        0,
        "Maximum number of worker restarts in the whole job",
        is_torchruns=True,
        details="Counts replacements of a worker and restarts of all workers together, not nodes that come or go. "
        "In the job file: `restarts`",
        least=0,
    )
    silence_s: float | None = setting(
        None,
        "Dump stacks and restart all workers after this long without output",
        details=f"Applies to {_CLASSIC} workers, if none of them has printed anything",
        option="--hang-timeout",
        least=0,
        section="health",
    )
    minibatches_per_shard: int = setting(
        8,
        "Number of batches in a shard of leased samples",
        details=f"Applies to datasets registered without a number of their own ({_SHARD})",
        least=1,
        section="shards",
    )
    shard_lease_s: float = setting(
        60.0,
        "Give a silent worker's samples to others after this long",
        details=f"Applies to {_CLASSIC} workers that neither requested nor reported samples. In a generation, "
        "a worker's leases depend on its heartbeats (`lease_s`)",
        above=0,
        section="shards",
    )
    shard_failures: int = setting(
        3,
        "Stop the job once a shard has failed this many times",
        details='With `on_bad_shard="skip"` the dataset skips the shard instead',
        least=1,
        section="shards",
    )
    straggler_factor: float = setting(
        4.0,
        "Treat a lease as slow at this multiple of the median age",
        details="When no other samples are left, the coordinator asks its worker to return those not started yet",
        least=1,
        section="shards",
    )
    log_mb: int = setting(
        1024,
        "Keep at most this many MB of the job's output at the coordinator",
        details="Counted before compression. The oldest lines are dropped first, and `everstep logs` says how many",
        least=1,
        most=1 << 20,
        section="logs",
    )
    log_days: float = setting(
        30.0, "Drop lines of the job's output from the coordinator after this many days", above=0, section="logs"
    )
    node_log_mb: int = setting(
        1024,
        "Keep at most this many MB of each log file of a worker, and of the events of a node, on that node",
        details="The space of older lines is freed. Lines that were not sent to the coordinator before are counted as "
        "dropped",
        least=1,
        most=1 << 20,
        section="logs",
    )
    node_log_days: float = setting(
        30.0,
        "Remove the logs and events of runs from a node this many days after they ended",
        details="Done by later runs in the same log folder. The record of a run stays (`record.json` and the "
        "coordinator's files)",
        above=0,
        section="logs",
    )
    system_metrics_s: float = setting(
        10.0,
        "Seconds between samples of the processors, memory, network and GPUs of nodes and workers; 0: never",
        details="The interval doubles after every 5 million points of the job",
        least=0,
        section="metrics",
    )


def policy_problems(policy: Policy) -> Iterator[str]:
    """What its types alone do not refuse."""
    yield from problems_of(policy)
    if policy.max_workers is not None and policy.max_workers < policy.min_workers:
        yield f"max_workers={policy.max_workers} is less than min_workers={policy.min_workers}"
    if policy.max_nodes is not None and policy.max_nodes < policy.min_nodes:
        yield f"max_nodes={policy.max_nodes} is less than min_nodes={policy.min_nodes}"
    if policy.lease_s <= policy.heartbeat_s:
        yield f"lease_s={policy.lease_s} is not longer than heartbeat_s={policy.heartbeat_s}"
