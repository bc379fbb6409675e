"""The order of an epoch and its cut into global batches and micro-batches."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from everstep.data.epoch_order import BatchKey, EpochOrder, Schedule
from everstep.data.permutation import Permutation
from everstep.engine.plan import plan_step

orders = st.builds(
    EpochOrder,
    size=st.integers(1, 120),
    batch_size=st.integers(1, 9),
    micro_batches=st.integers(1, 9),
    shuffle=st.booleans(),
    seed=st.integers(0, 3),
    drop_last=st.booleans(),
)


def positions(order: EpochOrder) -> list[int]:
    return [number * order.global_batch for number in range(order.num_batches)]


@given(order=orders)
def test_the_micro_batches_of_an_epoch_hold_each_place_once(order: EpochOrder) -> None:
    places = [
        place
        for start in positions(order)
        for micro_batch in range(order.micro_batches)
        for place in order.span(start, micro_batch)
    ]
    whole = order.size // order.global_batch * order.global_batch if order.drop_last else order.size
    assert places == list(range(whole))
    assert order.samples_at(len(positions(order)) * order.global_batch) == 0


@given(order=orders)
def test_a_short_last_batch_is_spread_in_few_parts_of_nearly_the_same_size(order: EpochOrder) -> None:
    for start in positions(order):
        sizes = [len(order.span(start, micro_batch)) for micro_batch in range(order.micro_batches)]
        parts = [size for size in sizes if size]
        assert sum(sizes) == order.samples_at(start)
        assert len(parts) == -(-sum(sizes) // order.batch_size)
        assert max(parts) - min(parts) <= 1
        assert sizes[0], "micro-batch 0 gives the buffers: it always has samples"
        assert order.void_micro_batches(start) == tuple(
            micro_batch for micro_batch, size in enumerate(sizes) if not size
        )


def test_the_parts_of_a_short_batch_lie_far_apart() -> None:
    order = EpochOrder(size=18, batch_size=4, micro_batches=8, shuffle=False, seed=0)
    assert [micro_batch for micro_batch in range(8) if micro_batch not in order.void_micro_batches(0)] == [
        0,
        1,
        3,
        4,
        6,
    ]
    plan = plan_step(num_micro_batches=8, size=4)
    assert all({0, 1, 3, 4, 6} & set(plan.micro_batches(rank)) for rank in range(4))


@given(size=st.integers(1, 9000), seed=st.integers(0, 3), epoch=st.integers(0, 3), data=st.data())
def test_a_shuffled_epoch_is_the_permutation(size: int, seed: int, epoch: int, data: Any) -> None:
    order = EpochOrder(size=size, batch_size=1, micro_batches=1, shuffle=True, seed=seed)
    start = data.draw(st.integers(0, size - 1))
    span = range(start, data.draw(st.integers(start, size)))
    assert order.indices(epoch, span) == Permutation(size, seed, epoch)[start : span.stop].tolist()


@given(order=orders, size=st.integers(1, 9), data=st.data())
def test_what_all_workers_have_scheduled_is_every_micro_batch_once(order: EpochOrder, size: int, data: Any) -> None:
    size = min(size, order.micro_batches)
    plan, scheduled = plan_step(num_micro_batches=order.micro_batches, size=size), []
    starts = positions(order)
    if not starts:
        return
    first = data.draw(st.sampled_from(starts))
    for rank in range(size):
        schedule = Schedule(order=order, epoch=4, position=first, todo=plan.todo[rank], run=plan.todo[rank])
        own, number = [], 0
        while (key := schedule.key(number)) is not None:
            own.append(key)
            number += 1
        assert all(schedule.needs(key) for key in own)
        assert not any(schedule.needs(key._replace(epoch=5)) for key in own)
        scheduled += own
    assert sorted(scheduled) == [
        BatchKey(4, start, micro_batch)
        for start in starts
        if start >= first
        for micro_batch in range(order.micro_batches)
    ]
