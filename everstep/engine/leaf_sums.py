"""Add up the leaves that this worker computes: `exact` in the fixed tree, `fast` in order of arrival.

A leaf is written into a buffer, or added straight onto its left sibling; then sums are carried upwards, like a
binary counter, so that at most log2(leaves) buffers live at a time. The sums stay valid when a peer dies,
because collectives only read it. A leaf that breaks off half-way spoils the sums it was added to: those are dropped
and their leaves computed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from everstep.engine.buckets import Flats
from everstep.engine.plan import Plan
from everstep.engine.tree import TreeNode, cover, lift, root


@dataclass(kw_only=True, slots=True)
class Target:
    """Where one leaf's gradients go."""

    leaf: int
    flats: Flats
    is_sum: bool  # the buffer holds a sibling already: add, do not overwrite
    carries: list[tuple[Flats, Flats]] = field(default_factory=list)  # then, bucket by bucket: first += second
    total: TreeNode  # what the sum is called afterwards
    spent: list[TreeNode] = field(default_factory=list)  # what it has taken in

    @property
    def sum(self) -> Flats:
        """The buffers that hold `total` when all carries are done."""
        return self.carries[-1][0] if self.carries else self.flats


class ExactFold:
    is_exact = True

    def __init__(self, num_leaves: int, make: Callable[[], Flats]) -> None:
        self._num_leaves = num_leaves
        self._sums: dict[TreeNode, Flats] = {}
        self._make = make
        self._free: list[Flats] = []

    def make_spare(self) -> None:
        """One more than is needed now; may run beside everything else."""
        self._free.append(self._make())

    @property
    def held(self) -> tuple[int, ...]:
        return tuple(sorted(leaf for node in self._sums for leaf in self._leaves(node)))

    def begin(self, leaf: int) -> Target:
        node = lift(TreeNode(0, leaf), self._num_leaves)
        if not node.is_left and node.sibling in self._sums:
            target = Target(leaf=leaf, flats=self._sums[node.sibling], is_sum=True, total=node, spent=[node.sibling])
            target.total = lift(node.parent, self._num_leaves)
        else:
            flats = self._free.pop() if self._free else self._make()
            target = Target(leaf=leaf, flats=flats, is_sum=False, total=node)
        while target.total != root(self._num_leaves) and target.total.sibling in self._sums:
            sibling = target.total.sibling
            pair = (target.sum, self._sums[sibling])
            target.carries.append(pair if target.total.is_left else pair[::-1])
            target.spent.append(sibling)
            target.total = lift(target.total.parent, self._num_leaves)
        return target

    def done(self, target: Target) -> None:
        kept = target.sum
        for node in target.spent:
            flats = self._sums.pop(node)
            if flats is not kept:
                self._free.append(flats)
        if target.flats is not kept and not target.is_sum:
            self._free.append(target.flats)
        self._sums[target.total] = kept

    def drop(self, target: Target) -> None:
        self._free += [self._sums.pop(node) for node in target.spent]
        if not target.is_sum:
            self._free.append(target.flats)

    def clear(self) -> None:
        self._free += self._sums.values()
        self._sums.clear()

    def tree(self, plan: Plan) -> tuple[int, list[list[TreeNode]]]:
        """The number of leaves of the tree over all workers, and the nodes that each rank brings to it."""
        return self._num_leaves, [cover(plan.micro_batches(rank), self._num_leaves) for rank in range(len(plan.todo))]

    def sums(self, rank: int, target: Target | None) -> dict[TreeNode, Flats]:
        """This rank's nodes, as they will be when `target` is done."""
        if target is None:
            return dict(self._sums)
        rest = {node: flats for node, flats in self._sums.items() if node not in target.spent}
        return {**rest, target.total: target.sum}

    def rename(self, leaves: Sequence[int]) -> None:
        raise AssertionError("in a fixed tree a leaf's number is its place")

    def _leaves(self, node: TreeNode) -> range:
        return range(node.index << node.level, min((node.index + 1) << node.level, self._num_leaves))


class FastFold:
    """One running sum; the tree is over the ranks that have leaves. The last bits depend on their number."""

    is_exact = False

    def __init__(self, make: Callable[[], Flats]) -> None:
        self._sum = make()
        self._held: list[int] = []
        self._nodes: dict[int, TreeNode] = {}  # by rank; one that works alone needs no tree

    @property
    def held(self) -> tuple[int, ...]:
        return tuple(sorted(self._held))

    def begin(self, leaf: int) -> Target:
        return Target(leaf=leaf, flats=self._sum, is_sum=bool(self._held), total=TreeNode(0, 0))

    def done(self, target: Target) -> None:
        self._held.append(target.leaf)

    def drop(self, target: Target) -> None:
        self._held.clear()

    def clear(self) -> None:
        self._held.clear()

    def rename(self, leaves: Sequence[int]) -> None:
        """Rename the held leaves."""
        self._held[:] = leaves

    def make_spare(self) -> None:
        """One sum is enough, whatever happens."""

    def tree(self, plan: Plan) -> tuple[int, list[list[TreeNode]]]:
        ranks = [rank for rank in range(len(plan.todo)) if plan.micro_batches(rank)]
        self._nodes = {rank: lift(TreeNode(0, place), len(ranks)) for place, rank in enumerate(ranks)}
        return len(ranks), [[self._nodes[rank]] if rank in self._nodes else [] for rank in range(len(plan.todo))]

    def sums(self, rank: int, target: Target | None) -> dict[TreeNode, Flats]:
        if not self._held and target is None:
            return {}  # the buffers hold another step's sums, or none
        return {self._nodes.get(rank, TreeNode(0, 0)): self._sum}


Fold = ExactFold | FastFold
