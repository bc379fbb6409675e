"""Folding leaves as they are computed: the same bits as the whole tree, in any order, through broken leaves."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from everstep.engine.buckets import Flats, lay_out
from everstep.engine.leaf_sums import ExactFold, FastFold, Fold, Target
from everstep.engine.plan import plan_step
from everstep.engine.tree import TreeNode, additions, cover, root

PARAMETERS = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2))]
LAYOUT = lay_out(PARAMETERS, bucket_bytes=8)  # a bucket per parameter


def make_flats() -> Flats:
    return Flats(LAYOUT, PARAMETERS)


def gradient(leaf: int) -> torch.Tensor:
    """Of very different sizes, so that another order of additions gives other bits."""
    return torch.randn(3, generator=torch.Generator().manual_seed(leaf)) * 10.0 ** (leaf % 7)


def compute(target: Target, leaf: int) -> None:
    """What a leaf's backward does."""
    view = target.flats.views[0]
    view.add_(gradient(leaf)) if target.is_sum else view.copy_(gradient(leaf))
    for left, right in target.carries:
        for mine, others in zip(left.buffers, right.buffers, strict=True):
            mine.add_(others)


def spoil(target: Target) -> None:
    """A leaf that broke off has written something."""
    target.flats.views[0].fill_(float("nan"))


def tree_sum(num_leaves: int, node: TreeNode | None = None) -> torch.Tensor | None:
    """The reference: plain recursion."""
    node = node or root(num_leaves)
    if not node.exists(num_leaves):
        return None
    if node.level == 0:
        return gradient(node.index)
    left = tree_sum(num_leaves, TreeNode(node.level - 1, 2 * node.index))
    right = tree_sum(num_leaves, TreeNode(node.level - 1, 2 * node.index + 1))
    return left if right is None or left is None else left + right


def bits(tensor: torch.Tensor | None) -> bytes:
    assert tensor is not None
    return struct.pack(f"{tensor.numel()}f", *tensor.tolist())


ORDERS = st.integers(1, 24).flatmap(lambda num_leaves: st.permutations(range(num_leaves)))


@given(ORDERS, st.sets(st.integers(0, 30), max_size=6))
def test_any_order_of_leaves_with_breaks_gives_the_sums_of_the_tree(order: list[int], breaks: set[int]) -> None:
    num_leaves = len(order)
    fold = ExactFold(num_leaves, make_flats)
    tries = 0
    while missing := [leaf for leaf in order if leaf not in fold.held]:
        target = fold.begin(missing[0])
        if tries in breaks:
            spoil(target)
            fold.drop(target)
        else:
            compute(target, missing[0])
            fold.done(target)
        tries += 1
        assert set(fold.sums(0, None)) == set(cover(fold.held, num_leaves))
    ((node, flats),) = fold.sums(0, None).items()
    assert node == root(num_leaves)
    assert bits(flats.views[0]) == bits(tree_sum(num_leaves))


@given(st.integers(1, 16), st.data())
def test_what_workers_fold_adds_up_to_the_tree(num_leaves: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, num_leaves))
    plan = plan_step(num_micro_batches=num_leaves, size=size)
    sums: dict[TreeNode, torch.Tensor] = {}
    for rank in range(size):
        fold = ExactFold(num_leaves, make_flats)
        target = None
        for leaf in plan.micro_batches(rank):
            target = fold.begin(leaf)
            promised = fold.sums(rank, target)  # what the reduction is given before the leaf is computed
            compute(target, leaf)
            fold.done(target)
        assert promised.keys() == fold.sums(rank, None).keys() == set(fold.tree(plan)[1][rank])
        sums |= {node: flats.views[0] for node, flats in promised.items()}
    for left, right, total in additions(sums, num_leaves)[0]:
        sums[total] = sums[left] + sums[right]
    assert bits(sums[root(num_leaves)]) == bits(tree_sum(num_leaves))


def test_a_fast_fold_forgets_everything_with_a_broken_leaf() -> None:
    fold = FastFold(make_flats)
    for leaf in (0, 1):
        target = fold.begin(leaf)
        compute(target, leaf)
        fold.done(target)
    broken = fold.begin(2)
    spoil(broken)
    fold.drop(broken)
    assert fold.held == ()
    again = fold.begin(0)
    compute(again, 0)
    fold.done(again)
    assert fold.sums(0, None)[TreeNode(0, 0)].views[0].tolist() == pytest.approx(gradient(0).tolist())


@pytest.mark.parametrize("make_fold", [lambda: ExactFold(3, make_flats), lambda: FastFold(make_flats)])
def test_a_rank_without_a_leaf_adds_nothing(make_fold: Callable[[], Fold]) -> None:
    """After a loss, newcomers may be more than the leaves that are missing."""
    plan = plan_step(num_micro_batches=3, size=3, held=[[0, 1], [], []])
    (idle,) = (rank for rank in range(3) if not plan.micro_batches(rank))
    sums: dict[TreeNode, torch.Tensor] = {}
    for rank in range(3):
        fold = make_fold()
        earlier = fold.begin(0)
        spoil(earlier)  # of an earlier step, or memory that was never written to
        fold.done(earlier)
        fold.clear()
        for leaf in plan.micro_batches(rank):
            target = fold.begin(leaf)
            compute(target, leaf)
            fold.done(target)
        num_leaves, nodes = fold.tree(plan)
        brought = fold.sums(rank, None)
        assert set(brought) == set(nodes[rank])
        assert bool(brought) == (rank != idle)
        sums |= {node: flats.views[0] for node, flats in brought.items()}

    for left, right, total in additions(sums, num_leaves)[0]:
        sums[total] = sums[left] + sums[right]
    assert sums[root(num_leaves)].tolist() == pytest.approx((gradient(0) + gradient(1) + gradient(2)).tolist())
