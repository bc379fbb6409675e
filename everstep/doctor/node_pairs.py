"""Which nodes measure the link between them. Pure."""

from __future__ import annotations

Pair = tuple[int, int]


def pairs(num_nodes: int) -> list[Pair]:
    """Each node is measured with the next one around a ring and, if there are enough nodes, with the one after that, so
    that a node between two slow ones still has a good neighbor. The first of each pair measures."""
    strides = [stride for stride in (1, 2) if num_nodes > max(1, 2 * stride - 1)]
    around = [(node, (node + stride) % num_nodes) for stride in strides for node in range(num_nodes)]
    return [*{frozenset(pair): pair for pair in reversed(around)}.values()][::-1]


def rounds(num_nodes: int) -> list[list[Pair]]:
    """In a round, no node has more than one partner."""
    made: list[list[Pair]] = []
    for pair in pairs(num_nodes):
        free = next((each for each in made if not any(set(pair) & set(other) for other in each)), None)
        if free is None:
            made.append([pair])
        else:
            free.append(pair)
    return made
