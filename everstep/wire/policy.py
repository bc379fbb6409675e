"""The settings of a job that the coordinator decides by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields


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


_POSITIVE = {
    "start_nodes",
    "start_workers",
    "min_workers",
    "max_workers",
    "micro_batch_deaths",
    "min_nodes",
    "max_nodes",
}
_POSITIVE |= {"minibatches_per_shard", "shard_failures"}


def policy_problems(policy: Policy) -> Iterator[str]:
    """What its types alone cannot say."""
    for each in fields(policy):
        value, least = getattr(policy, each.name), int(each.name in _POSITIVE)
        if value is not None and value < least:
            yield f"{each.name}={value} is less than {least}"
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
