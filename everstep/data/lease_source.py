"""Where leases come from: the coordinator, or this process itself where there is none.

Both take the same messages. An unreachable coordinator is waited for, up to a deadline, and then an error; never the
end of the data. Does not decide what is asked for."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

from everstep import env, wire
from everstep.engine import incarnation
from everstep.errors import UsageError
from everstep.retry import patiently

if TYPE_CHECKING:
    from everstep.client.calls import Coordinator  # httpx: not needed by a worker that is alone

T = TypeVar("T")


class LeaseSource(Protocol):
    is_shared: bool  # others take from it too: samples that are not free now may be later

    def register(self) -> wire.DatasetSpec:
        """Make the dataset known; the numbers that hold for it."""
        ...

    def call(self, message: wire.LeaseRequest) -> wire.Leased:
        """Patiently."""
        ...

    def call_once(self, message: wire.LeaseRequest) -> wire.Leased:
        """A TemporaryError if it is away: the call may be made again."""
        ...

    def request(self) -> tuple[str, int]:
        """This process's name there, and the number of its next request."""
        ...

    def is_rest(self, epoch: int, number: int) -> bool:
        """Whether `number` samples are all that is not done of this epoch."""
        ...

    def checkpoint(self) -> wire.ShardCheckpoint: ...

    def restore(self, message: wire.RestoreShards) -> None: ...

    def close(self) -> None: ...


class RemoteLeaseSource:
    """The coordinator."""

    is_shared = True

    def __init__(self, client: Coordinator, worker: str, dataset: str, spec: wire.DatasetSpec) -> None:
        self._client, self._worker, self._dataset, self._spec = client, worker, dataset, spec
        self._deadline_s = env.coordinator_deadline_s()
        self._stop = threading.Event()

    def register(self) -> wire.DatasetSpec:
        return self._ask(lambda: self._client.register_dataset(self._dataset, self._spec)).spec

    def call(self, message: wire.LeaseRequest) -> wire.Leased:
        return self._ask(lambda: self.call_once(message))

    def call_once(self, message: wire.LeaseRequest) -> wire.Leased:
        return self._client.report_and_lease(self._worker, message)

    def request(self) -> tuple[str, int]:
        name = incarnation.current()
        return name, next_request(name, self._dataset)

    def is_rest(self, epoch: int, number: int) -> bool:
        (view,) = [each for each in self._ask(self._client.datasets).datasets if each.dataset == self._dataset]
        known = [each for each in view.epochs if each.epoch == epoch]
        # All of it has been leased, and what is out is what the asker has.
        return bool(known) and (
            known[0].leased + known[0].waiting == number and known[0].done + known[0].skipped + number == view.spec.size
        )

    def checkpoint(self) -> wire.ShardCheckpoint:
        return self._ask(lambda: self._client.shard_checkpoint(self._dataset))

    def restore(self, message: wire.RestoreShards) -> None:
        self._ask(lambda: self._client.restore_shards(self._dataset, message))

    def close(self) -> None:
        self._stop.set()
        self._client.close()

    def _ask(self, call: Callable[[], T]) -> T:
        return patiently(call, deadline_s=self._deadline_s, stop=self._stop)


def open_lease_source(dataset: str, spec: wire.DatasetSpec) -> LeaseSource:
    """The lease source of this process, by its environment."""
    url = env.coordinator_url()
    if url is None:
        from everstep.data.local_lease_source import LocalLeaseSource

        return LocalLeaseSource(dataset, spec, rank=env.torchrun_rank(), num_workers=env.torchrun_size())
    from everstep.client.calls import Coordinator

    token = env.token()
    if token is None:
        raise UsageError(
            f"{env.COORDINATOR}={url} is set, but no token",
            hint=f"set {env.TOKEN_FILE} to the coordinator's token file (mode 0600), or {env.TOKEN}",
            code="lease-token-missing",
        )
    if not env.worker():
        raise UsageError(
            f"{env.COORDINATOR} is set, but not {env.WORKER}",
            hint="start the script with `everstep run`",
            code="lease-worker-name-missing",
        )
    return RemoteLeaseSource(Coordinator(url, token, env.job()), env.worker(), dataset, spec)


_numbers: dict[tuple[int, str, str], Iterator[int]] = {}


def next_request(name: str, dataset: str) -> int:
    """1, 2, …: also of a dataset that this process has used before by another object."""
    return next(_numbers.setdefault((os.getpid(), name, dataset), itertools.count(1)))
