"""The thread that leases ahead: what it says is said in the generation in which it was known."""

from __future__ import annotations

import queue

from everstep.data.leases import Leases
from everstep.data.local_leases import LocalLeases
from everstep.wire import DatasetSpec, Leased, LeaseRequest

SPEC = DatasetSpec(size=64, batch_size=8, epochs=1, shuffle=False, seed=0, minibatches_per_shard=1)


class Listening(LocalLeases):
    def __init__(self) -> None:
        super().__init__("records", SPEC)
        self.heard: queue.Queue[LeaseRequest] = queue.Queue()

    def report_and_lease(self, worker: str, message: LeaseRequest) -> Leased:
        self.heard.put(message)
        return super().report_and_lease(worker, message)


class HastyLeases(Leases):
    """Generation 2 begins while the first call of generation 1 is being made."""

    def _request(self, call):
        with self.changed:
            if self.generation == 1:
                self.regroup(2, [], settles=False)
        return super()._request(call)


def test_a_generation_is_settled_by_its_own_word_alone() -> None:
    local = Listening()
    leases = HastyLeases(local, None, "records", SPEC)
    with leases.changed:
        leases.regroup(1, [], settles=True)
    leases.start()
    first, second = local.heard.get(timeout=60), local.heard.get(timeout=60)
    leases.close()
    assert (first.generation, first.settles) == (1, True)
    assert (second.generation, second.settles) == (2, False)
