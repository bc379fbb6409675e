"""Who gets the leader's state from whom (pure).

Each receiver passes the state on to the next as it arrives. Receivers on one machine follow each other, so the state
crosses the network once per machine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """One member's part."""

    source: int | None = None  # who it gets the state from; None: it is the leader
    following: int | None = None  # who it passes the state on to


def find_routes(leader: int, receivers: Sequence[int], neighbors: Sequence[Collection[int]]) -> dict[int, Route]:
    """By rank, for the leader and each receiver. `neighbors`: for each rank, the other ranks on its machine."""
    left, chain = sorted(receivers), [leader]
    while left:
        near = next((rank for rank in left if rank in neighbors[chain[-1]]), None)
        chain.append(left.pop(0) if near is None else left.pop(left.index(near)))
    sources, following = [None, *chain], [*chain[1:], None]
    return {rank: Route(source=sources[number], following=following[number]) for number, rank in enumerate(chain)}
