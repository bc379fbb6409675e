"""Reading ahead: whatever regroups and new shares come between, a micro-batch's batch holds that micro-batch's
samples, and no micro-batch is missed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import data

from everstep.data.epoch_order import BatchKey, EpochOrder, Schedule
from everstep.data.randomness import KeyedDataset, as_it_is
from everstep.data.reader import InProcessSource, MicroBatchReader, Requests
from everstep.engine.dealing import shares_by_speed
from everstep.engine.plan import plan_step
from lab.samples import Numbers, as_they_are


def here(dataset: Any, requests: Requests) -> Iterable[Any]:
    return InProcessSource(KeyedDataset(dataset, 0, as_they_are), requests)


def two_processes(dataset: Any, requests: Requests, is_persistent: bool = False) -> data.DataLoader[Any]:
    return data.DataLoader(
        KeyedDataset(dataset, 0, as_they_are),
        batch_sampler=requests,  # type: ignore[arg-type]
        num_workers=2,
        collate_fn=as_it_is,
        persistent_workers=is_persistent,
    )


class Worker:
    """What the engine tells one worker's loader, as simply as can be: its micro-batches, commits, and worlds that
    change."""

    def __init__(self, order: EpochOrder, make_source: Callable[[Any, Requests], Iterable[Any]]) -> None:
        self.order = order
        self.dataset = Numbers(order.size)
        self.requests = Requests(order)
        self.source = make_source(self.dataset, self.requests)
        self.epoch = self.position = self.rank = self.generation = self.num_deals = 0
        self.size, self.shares = 1, ()
        self.begin_epoch(0)

    def begin_epoch(self, epoch: int) -> None:
        self.epoch, self.position = epoch, 0
        self.reader = MicroBatchReader(self.source, self.requests)
        self._plan(None)

    @property
    def is_over(self) -> bool:
        return not self.order.samples_at(self.position)

    def _plan(self, held: list[list[int]] | None) -> None:
        void = self.order.void_micro_batches(self.position)
        todo = plan_step(
            num_micro_batches=self.order.micro_batches, size=self.size, held=held, shares=self.shares
        ).todo[self.rank]
        self.todo = [micro_batch for micro_batch in todo if micro_batch not in void]

    def _schedule(self) -> Schedule:
        run = plan_step(num_micro_batches=self.order.micro_batches, size=self.size, shares=self.shares).todo[self.rank]
        return Schedule(order=self.order, epoch=self.epoch, position=self.position, todo=tuple(self.todo), run=run)

    @property
    def dealt(self) -> tuple[int, int]:
        return self.generation, self.num_deals

    def read(self) -> None:
        """The next micro-batch's batch is that micro-batch's; a worker without a micro-batch runs the body with
        micro-batch 0's."""
        micro_batch = self.todo[0] if self.todo else 0
        batch = self.reader.get(BatchKey(self.epoch, self.position, micro_batch), self.dealt, self._schedule)
        assert batch == self.order.indices(self.epoch, self.order.span(self.position, micro_batch))

    def commit(self) -> None:
        self.position += self.order.samples_at(self.position)
        if not self.is_over:
            self._plan(None)

    def compute(self) -> None:
        """A whole micro-batch; the last one commits the step."""
        self.read()
        self.todo = self.todo[1:]
        if not self.todo:
            self.commit()

    def regroup(self, size: int, rank: int, owners: list[int]) -> None:
        """`owners`: by micro-batch, the rank that holds it already; -1: none."""
        self.generation += 1
        self.shares, self.num_deals = (), 0
        self.size = min(size, self.order.micro_batches)
        self.rank = rank % self.size
        held = [
            [micro_batch for micro_batch in range(self.order.micro_batches) if owners[micro_batch] == each]
            for each in range(self.size)
        ]
        self._plan(held)

    def deal(self, weights: list[int]) -> None:
        """A step is committed, and shares change with it; the more weight, the more micro-batches."""
        self.shares = shares_by_speed(self.order.micro_batches, [1 / (2 + each) for each in weights[: self.size]])
        self.num_deals += 1
        self.commit()


orders = st.builds(
    EpochOrder,
    size=st.integers(1, 70),
    batch_size=st.integers(1, 5),
    micro_batches=st.integers(1, 7),
    shuffle=st.booleans(),
    seed=st.just(1),
    drop_last=st.booleans(),
).filter(lambda order: order.num_batches > 0)

# "compute" a micro-batch; "read" one whose body then breaks off; "regroup" in the same step; "catch up" by a peer's
# state; "deal": other shares, with a commit.
happening = st.tuples(
    st.sampled_from(["compute", "compute", "compute", "read", "regroup", "catch up", "deal", "next epoch"]),
    st.integers(1, 7),
    st.integers(0, 6),
    st.lists(st.integers(-1, 6), min_size=7, max_size=7),
)


def live(worker: Worker, happenings: list[Any]) -> None:
    for what, size, rank, owners in happenings:
        if worker.is_over or what == "next epoch":
            worker.begin_epoch(worker.epoch + 1)
        elif what == "compute":
            worker.compute()
        elif what == "read":
            worker.read()
        elif what == "deal":
            worker.deal(owners)
        else:
            if what == "catch up":
                worker.commit()
            if not worker.is_over:
                worker.regroup(size, rank, owners if what == "regroup" else [-1] * 7)
    while not worker.is_over:
        worker.compute()


@given(order=orders, happenings=st.lists(happening, max_size=40))
def test_in_this_process_each_batch_is_its_leafs(order: EpochOrder, happenings: list[Any]) -> None:
    live(Worker(order, here), happenings)


@pytest.mark.parametrize("is_persistent", [False, True])
def test_with_two_loader_processes_each_batch_is_its_leafs(is_persistent: bool) -> None:
    @given(order=orders, happenings=st.lists(happening, min_size=5, max_size=40))
    @settings(max_examples=8)
    def check(order: EpochOrder, happenings: list[Any]) -> None:
        live(Worker(order, lambda dataset, requests: two_processes(dataset, requests, is_persistent)), happenings)
        gc.collect()  # ends the loader's processes

    check()


def test_undisturbed_each_sample_is_read_once_and_nothing_ahead_of_its_time() -> None:
    worker = Worker(EpochOrder(size=50, batch_size=3, micro_batches=4, shuffle=True, seed=1), here)
    for micro_batch in range(1, 5):
        worker.compute()
        assert worker.dataset.num_reads == 3 * micro_batch
    while not worker.is_over:
        worker.compute()
    assert worker.dataset.num_reads == 50


class Watched(Requests):
    """Keeps what was asked for."""

    def __init__(self, order: EpochOrder) -> None:
        super().__init__(order)
        self.seen: list[int] = []

    def __next__(self) -> Any:
        request = super().__next__()
        self.seen += request[0]
        return request


def test_what_was_read_ahead_and_is_still_needed_is_not_read_again() -> None:
    order = EpochOrder(size=48, batch_size=2, micro_batches=4, shuffle=False, seed=1)
    worker = Worker(order, two_processes)
    worker.requests = watched = Watched(order)
    worker.source = two_processes(worker.dataset, watched)
    worker.begin_epoch(0)
    worker.compute()
    assert watched.seen == list(range(10)), "two micro-batches ahead for each process, and the one that was given"
    worker.regroup(2, 0, [0, -1, -1, -1])  # from now on micro-batches 0 and 1 of each step
    while not worker.is_over:
        worker.compute()
    mine = [place for place in range(48) if place % 8 < 4]
    assert sorted(watched.seen) == sorted({*mine, *range(10)})


def test_after_new_shares_only_what_is_needed_is_read_and_nothing_twice() -> None:
    order = EpochOrder(size=96, batch_size=2, micro_batches=4, shuffle=False, seed=1)
    worker = Worker(order, two_processes)
    worker.requests = watched = Watched(order)
    worker.source = two_processes(worker.dataset, watched)
    worker.regroup(2, 1, [-1] * 4)  # micro-batches 2 and 3 of each step
    worker.begin_epoch(0)
    for _ in range(3):
        worker.compute()
    ahead = len(watched.seen)
    worker.deal([9, 0])  # from now on only micro-batch 3
    while not worker.is_over:
        worker.compute()
    assert worker.todo == [] and not watched.kept, "what is not needed any more is dropped"
    assert len(watched.seen) == len(set(watched.seen))
    assert all(place % 8 >= 6 for place in watched.seen[ahead:])


def test_processes_go_on_over_a_regroup() -> None:
    worker = Worker(EpochOrder(size=60, batch_size=2, micro_batches=5, shuffle=True, seed=1), two_processes)
    worker.compute()
    processes = worker.reader._iterator._workers  # type: ignore[union-attr]
    before = [process.pid for process in processes]
    for size, rank in [(3, 1), (2, 0), (5, 4), (1, 0)]:
        worker.regroup(size, rank, [-1] * 5)
        worker.compute()
    assert [process.pid for process in worker.reader._iterator._workers] == before  # type: ignore[union-attr]
    assert all(process.is_alive() for process in processes)


class Stops(Numbers):
    """Ends the epoch in a way that was never meant for datasets."""

    def __getitem__(self, index: int) -> int:
        if index == 7:
            raise StopIteration
        return super().__getitem__(index)


@pytest.mark.parametrize("make_source", [here, two_processes])
def test_a_dataset_that_raises_stop_iteration_is_an_error_not_an_endless_loop(make_source: Any) -> None:
    worker = Worker(EpochOrder(size=20, batch_size=2, micro_batches=2, shuffle=False, seed=1), here)
    worker.source = make_source(Stops(20), worker.requests)
    worker.begin_epoch(0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        while not worker.is_over:
            worker.compute()
    if make_source is two_processes:
        worker.reader._iterator._shutdown_workers()  # type: ignore[union-attr]
