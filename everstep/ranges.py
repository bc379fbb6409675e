"""Sets of positions as sorted, disjoint, half-open ranges: ((0, 64), (128, 192)). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Range = tuple[int, int]
Ranges = tuple[Range, ...]


def merged(ranges: Iterable[Range]) -> Ranges:
    """The same positions in as few ranges as possible; those given may overlap and come in any order."""
    found: list[Range] = []
    for start, stop in sorted(each for each in ranges if each[0] < each[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return tuple(found)


def as_ranges(pairs: Iterable[Sequence[int]]) -> Ranges:
    """Ranges that came as JSON."""
    return tuple((start, stop) for start, stop in pairs)


def within(ranges: Iterable[Range], start: int, stop: int) -> Ranges:
    """The part of them between start and stop."""
    return tuple((max(a, start), min(b, stop)) for a, b in ranges if a < stop and start < b)


def without(ranges: Iterable[Range], start: int, stop: int) -> Ranges:
    """The part of them outside of start and stop."""
    found: list[Range] = []
    for a, b in ranges:
        if b <= start or stop <= a:
            found.append((a, b))
            continue
        if a < start:
            found.append((a, start))
        if stop < b:
            found.append((stop, b))
    return tuple(found)


def gaps(ranges: Iterable[Range], start: int, stop: int) -> Ranges:
    """What merged ranges leave open between start and stop."""
    found: list[Range] = []
    for a, b in within(ranges, start, stop):
        if start < a:
            found.append((start, a))
        start = b
    return (*found, (start, stop)) if start < stop else tuple(found)


def size(ranges: Iterable[Range]) -> int:
    return sum(stop - start for start, stop in ranges)
