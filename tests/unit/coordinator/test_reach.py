"""The largest set that can reach each other, against counting all sets."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from everstep.coordinator.roster.reachability import MAX_EXACT, largest_mutual


def is_mutual(names, unreachable):
    return not any(b in unreachable.get(a, ()) for a in names for b in names if a != b)


@st.composite
def networks(draw, max_workers=7):
    names = [f"w{n}" for n in range(draw(st.integers(1, max_workers)))]
    unreachable = draw(st.dictionaries(st.sampled_from(names), st.lists(st.sampled_from([*names, "gone"]), max_size=4)))
    anchors = draw(st.sets(st.sampled_from(names), min_size=1))
    return names, unreachable, anchors


@given(networks())
def test_it_is_mutual_holds_an_anchor_and_none_is_larger(network):
    names, unreachable, anchors = network
    found = largest_mutual(names, unreachable, anchors)

    assert is_mutual(found, unreachable)
    assert found & anchors
    for larger in combinations(names, len(found) + 1):
        assert not (is_mutual(larger, unreachable) and anchors & set(larger))


def test_the_senior_half_wins_a_tie():
    names = ["w0", "w1", "w2", "w3"]
    unreachable = {"w0": ["w2", "w3"], "w1": ["w2", "w3"]}

    assert largest_mutual(names, unreachable, set(names)) == {"w0", "w1"}


def test_a_large_cut_is_solved_too():
    names = [f"w{n}" for n in range(4 * MAX_EXACT)]
    half = len(names) // 2 + 1
    unreachable = dict.fromkeys(names[:half], names[half:])

    assert largest_mutual(names, unreachable, set(names)) == set(names[:half])
