"""Ranges are sets of positions: whatever is done with them, it is what sets would do."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from everstep.ranges import gaps, merged, size, within, without

positions = st.integers(0, 30)
some = st.lists(st.tuples(positions, positions).map(lambda pair: tuple(sorted(pair))))


def members(ranges):
    return {position for start, stop in ranges for position in range(start, stop)}


@given(some)
def test_merged_ranges_hold_the_same_positions_sorted_and_apart(ranges):
    found = merged(ranges)
    assert members(found) == members(ranges)
    assert all(start < stop for start, stop in found)
    assert all(a[1] < b[0] for a, b in pairwise(found))
    assert size(found) == len(members(ranges))


@given(some.map(merged), positions, positions)
def test_within_without_and_gaps_share_the_positions_out(ranges, start, stop):
    here = set(range(start, stop))
    assert members(within(ranges, start, stop)) == members(ranges) & here
    assert members(without(ranges, start, stop)) == (members(ranges) - here if start < stop else members(ranges))
    assert members(gaps(ranges, start, stop)) == here - members(ranges)
