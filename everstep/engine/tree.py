"""The fixed binary tree in which leaves are summed: the same additions for every number of workers.

A node (level, index) covers the leaves [index << level, (index + 1) << level) that exist. A parent is
left + right; a left child whose sibling is wholly beyond the last leaf *is* its parent. Float addition is
commutative but not associative: only the shape of the tree matters, not who adds. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class TreeNode(NamedTuple):
    level: int
    index: int  # type: ignore[assignment]  # a tuple's own index() is not needed here

    @property
    def sibling(self) -> TreeNode:
        return TreeNode(self.level, self.index ^ 1)

    @property
    def parent(self) -> TreeNode:
        return TreeNode(self.level + 1, self.index >> 1)

    @property
    def is_left(self) -> bool:
        return self.index & 1 == 0

    def exists(self, num_leaves: int) -> bool:
        return self.index << self.level < num_leaves


class Addition(NamedTuple):
    """`left` takes in `right`; the sum is then called `total`."""

    left: TreeNode
    right: TreeNode
    total: TreeNode


def root(num_leaves: int) -> TreeNode:
    return TreeNode((num_leaves - 1).bit_length(), 0)


def lift(node: TreeNode, num_leaves: int) -> TreeNode:
    """The highest name of a node: a left child without a sibling is its own parent."""
    top = root(num_leaves)
    while node != top and node.is_left and not node.sibling.exists(num_leaves):
        node = node.parent
    return node


def additions(nodes: Iterable[TreeNode], num_leaves: int) -> tuple[list[Addition], list[TreeNode]]:
    """All additions that these nodes allow, in an order in which they can be done, and what is left after them."""
    there = {lift(node, num_leaves) for node in nodes}
    todo: list[Addition] = []
    for level in range(root(num_leaves).level):
        for node in sorted(n for n in there if n.level == level and n.is_left and n.sibling in there):
            total = lift(node.parent, num_leaves)
            todo.append(Addition(node, node.sibling, total))
            there -= {node, node.sibling}
            there.add(total)
    return todo, sorted(there, key=lambda n: (n.index << n.level, n.level))


def cover(leaves: Iterable[int], num_leaves: int) -> list[TreeNode]:
    """The largest subtrees that hold exactly these leaves, from left to right."""
    return additions((TreeNode(0, leaf) for leaf in leaves), num_leaves)[1]
