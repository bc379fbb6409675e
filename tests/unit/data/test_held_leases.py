"""Leases cut into batches, and what becomes of the ends."""

from __future__ import annotations

from everstep.data.held_leases import MOST_PARTS, HeldLeases, LeaseReport, LeaseReports, joined
from everstep.wire import Lease, LeasePart


def lease(number, start, stop, *, epoch=0, left=None):
    return Lease(lease=number, epoch=epoch, start=start, stop=stop, left=left or [[start, stop]])


def part(number, start, count):
    return LeasePart(lease=number, start=start, count=count)


def test_a_batch_takes_the_ends_of_several_leases_of_one_epoch():
    held = HeldLeases(4)
    assert held.update([lease(1, 0, 6), lease(2, 10, 13), lease(3, 100, 108, epoch=1)]) == 3
    assert held.num_whole() == 4
    assert [held.cut().parts for _ in range(2)] == [(part(1, 0, 4),), (part(1, 4, 2), part(2, 10, 2))]
    assert held.remainders() == [0]
    assert [held.cut().epoch for _ in range(2)] == [1, 1]
    assert held.cut() is None
    held.end_epoch(0)
    assert held.cut().parts == (part(2, 12, 1),)


def test_a_short_batch_is_not_cut_once_more_has_come():
    held = HeldLeases(4)
    held.update([lease(1, 0, 2)])
    held.end_epoch(0)
    held.update([lease(1, 0, 2), lease(2, 4, 7)])
    assert held.cut().num_records == 4
    assert held.cut() is None


def test_what_the_coordinator_does_not_name_is_not_held():
    held = HeldLeases(2)
    held.update([lease(1, 0, 4), lease(2, 10, 14)])
    first = held.cut()
    assert held.holds(first.parts)
    assert held.update([lease(2, 10, 14, left=[[12, 14]])]) == 0
    assert not held.holds(first.parts)
    held.put_back(first.parts)
    assert held.cut().parts == (part(2, 12, 2),)
    assert held.cut() is None


def test_what_was_cut_and_not_used_is_cut_again_first():
    held = HeldLeases(2)
    held.update([lease(1, 0, 6)])
    first, second = held.cut(), held.cut()
    held.put_back(first.parts)
    assert held.cut() == first
    assert held.take_out([1]) == (part(1, 4, 2),)
    assert held.num_uncut == 0
    assert held.holds(second.parts)


def test_reports_are_joined_and_a_call_brings_a_limited_number():
    assert joined([part(1, 4, 2), part(2, 0, 1), part(1, 0, 4), part(1, 1, 2)]) == (part(1, 0, 6), part(2, 0, 1))
    outbox, told = LeaseReports(), []
    outbox.add(LeaseReport(done=tuple(part(1, 2 * n, 1) for n in range(MOST_PARTS + 1)), settles=True), now=1.0)
    outbox.add(LeaseReport(on_durable=(lambda: told.append(1),)), now=2.0)
    first, second = outbox.take(), outbox.take()
    assert (len(first.done), first.settles, len(first.on_durable)) == (MOST_PARTS, False, 0)
    assert (len(second.done), second.settles, len(second.on_durable)) == (1, True, 1)
    assert outbox.content.is_empty
    assert outbox.since == 1.0
