"""The thread that leases ahead: what it says is said in the generation in which it was known."""

from __future__ import annotations

import queue

from everstep.data.leases import Leases
from everstep.data.local_lease_source import LocalLeaseSource
from everstep.wire import DatasetSpec, Leased, LeaseRequest

SPEC = DatasetSpec(size=64, batch_size=8, epochs=1, shuffle=False, seed=0, minibatches_per_shard=1)


class HastyLeaseSource(LocalLeaseSource):
    """Generation 2 begins while the first call of generation 1 is being made."""

    leases: Leases

    def __init__(self) -> None:
        super().__init__("records", SPEC)
        self.heard: queue.Queue[LeaseRequest] = queue.Queue()

    def request(self) -> tuple[str, int]:
        with self.leases.changed:
            if self.leases.generation == 1:
                self.leases.regroup(2, [], settles=False)
        return super().request()

    def call(self, message: LeaseRequest) -> Leased:
        self.heard.put(message)
        return super().call(message)


def test_a_generation_is_settled_by_its_own_word_alone() -> None:
    source = HastyLeaseSource()
    source.leases = Leases(source, "records", SPEC.batch_size)
    with source.leases.changed:
        source.leases.regroup(1, [], settles=True)
    source.leases.start()
    first, second = source.heard.get(timeout=60), source.heard.get(timeout=60)
    source.leases.close()
    assert (first.generation, first.settles) == (1, True)
    assert (second.generation, second.settles) == (2, False)
