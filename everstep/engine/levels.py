"""Who talks to whom when sums and small messages travel in levels: through shared memory inside a node, once between
nodes.

What a rank sends to another node goes to one member there, the rank's deputy: the one with the same place in its node.
The deputy passes it on to the members of its node. What a node sends to a rank comes from the same deputy. So two nodes
exchange each byte once, over as many connections as they have members. All ranks get the same result. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

Nodes = tuple[tuple[int, ...], ...]  # the ranks of each node


def single(size: int) -> Nodes:
    """Each rank has a node of its own."""
    return tuple((rank,) for rank in range(size))


def nodes_of(seen: Sequence[Sequence[int]]) -> Nodes:
    """Nodes in the order of their first ranks. `seen`: by rank, the ranks whose memory it can read. All members of a
    node read each other's memory, so a worker that only some of them see has a node of its own."""
    nodes: list[list[int]] = []
    sets = [frozenset(others) for others in seen]
    for rank, others in enumerate(sets):
        mutual = {other for other in others if rank in sets[other]}
        for node in nodes:
            if mutual.issuperset(node):
                node.append(rank)
                break
        else:
            nodes.append([rank])
    return tuple(tuple(node) for node in nodes)


@dataclass(frozen=True)
class Levels:
    """The levels as one rank sees them."""

    nodes: Nodes
    rank: int
    _places: dict[int, tuple[int, int]] = field(init=False, repr=False, default_factory=dict)  # node and place in it

    def __post_init__(self) -> None:
        for number, node in enumerate(self.nodes):
            self._places.update({rank: (number, place) for place, rank in enumerate(node)})

    @property
    def is_useful(self) -> bool:
        """There are several nodes, and at least one of them has several members."""
        return 1 < len(self.nodes) < len(self._places)

    @property
    def node(self) -> int:
        return self._places[self.rank][0]

    @cached_property
    def mates(self) -> tuple[int, ...]:
        """The other members of this node."""
        return tuple(rank for rank in self.nodes[self.node] if rank != self.rank)

    def deputy(self, rank: int, node: int) -> int:
        """The member of another node that represents a rank there."""
        members = self.nodes[node]
        return members[self._places[rank][1] % len(members)]

    @cached_property
    def deputies(self) -> dict[int, int]:
        """The deputies of this rank, by node."""
        return {node: self.deputy(self.rank, node) for node in range(len(self.nodes)) if node != self.node}

    @cached_property
    def partners(self) -> set[int]:
        """The ranks of other nodes that this rank exchanges messages with."""
        return {*self.deputies.values(), *self.represented_by(self.rank)}

    def represented_by(self, member: int) -> tuple[int, ...]:
        """The ranks of other nodes for which a member of this node is the deputy."""
        return self._wards[member]

    @cached_property
    def _wards(self) -> dict[int, tuple[int, ...]]:
        wards: dict[int, list[int]] = {member: [] for member in self.nodes[self.node]}
        for rank in sorted(self._places):
            if self._places[rank][0] != self.node:
                wards[self.deputy(rank, self.node)].append(rank)
        return {member: tuple(ranks) for member, ranks in wards.items()}
