"""Who gets the leader's state from whom (pure).

The state is sent once per machine: from the leader to the first receiver on one machine, from there to the first
receiver on the next, and so on. The other receivers on a machine read the first one's memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """One member's part."""

    source: int | None = None  # who it gets the state from; None: it is the leader
    is_near: bool = False  # it reads the source's memory
    readers: tuple[int, ...] = ()  # ranks that read its memory
    following: int | None = None  # who it passes the state on to


def find_routes(leader: int, receivers: Sequence[int], neighbors: Sequence[Collection[int]]) -> dict[int, Route]:
    """By rank, for the leader and each receiver. `neighbors`: for each rank, the ranks whose memory it reads."""

    def readers_of(rank: int, among: Sequence[int]) -> tuple[int, ...]:
        return tuple(each for each in among if rank in neighbors[each] and each in neighbors[rank])

    left, machines = sorted(receivers), []
    while left:
        first = left.pop(0)
        readers = readers_of(first, left)
        machines.append((first, readers))
        left = [rank for rank in left if rank not in readers]
    chain = [leader, *(first for first, _ in machines), None]
    routes = {leader: Route(following=chain[1])}
    for number, (first, readers) in enumerate(machines, start=1):
        routes[first] = Route(source=chain[number - 1], readers=readers, following=chain[number + 1])
        routes |= {rank: Route(source=first, is_near=True) for rank in readers}
    return routes
