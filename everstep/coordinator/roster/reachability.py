"""The largest set of workers that can all reach each other.

A pair is cut if either of the two says so. Exact while few workers are concerned, greedy beyond; the more senior wins
a tie. Knows only names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

MAX_EXACT = 20  # concerned workers; the exact search doubles with every two or three more


def largest_mutual(candidates: Sequence[str], unreachable: Mapping[str, Iterable[str]], anchors: set[str]) -> set[str]:
    """`candidates` by seniority; the answer contains one of `anchors`, at least one of which is a candidate."""
    cuts = _cuts(candidates, unreachable)
    free = [name for name in candidates if not cuts[name]]
    concerned = [name for name in candidates if cuts[name]]
    search = _exact if len(concerned) <= MAX_EXACT else _greedy
    if not concerned or not anchors.isdisjoint(free):
        return {*free, *search(concerned, cuts)}
    best: set[str] = set()
    for anchor in (name for name in concerned if name in anchors):
        found = {anchor, *search([name for name in concerned if name != anchor and name not in cuts[anchor]], cuts)}
        if len(found) > len(best):
            best = found
    return {*free, *best}


def _cuts(candidates: Sequence[str], unreachable: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    cuts: dict[str, set[str]] = {name: set() for name in candidates}
    for name in candidates:
        for other in unreachable.get(name, ()):
            if other in cuts and other != name:
                cuts[name].add(other)
                cuts[other].add(name)
    return cuts


def _exact(names: list[str], cuts: Mapping[str, set[str]]) -> list[str]:
    if not names:
        return []
    first, rest = names[0], names[1:]
    compatible = [name for name in rest if name not in cuts[first]]
    with_first = [first, *_exact(compatible, cuts)]
    if len(compatible) == len(rest) or len(with_first) >= len(rest):
        return with_first
    without_first = _exact(rest, cuts)
    return without_first if len(without_first) > len(with_first) else with_first


def _greedy(names: list[str], cuts: Mapping[str, set[str]]) -> list[str]:
    """Always the one with the fewest cuts to those that are left."""
    left, taken = dict.fromkeys(names), []
    while left:
        best = min(left, key=lambda name: len(cuts[name] & left.keys()))  # the first, most senior one of equals
        taken.append(best)
        for gone in (best, *cuts[best]):
            left.pop(gone, None)
    return taken
