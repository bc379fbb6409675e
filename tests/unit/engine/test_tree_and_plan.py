"""Whoever computes which leaves, the additions are the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.engine.plan import plan_step
from everstep.engine.tree import Node, additions, cover, root
from everstep.errors import UsageError


def leaves_of(node: Node, num_leaves: int) -> set[int]:
    return set(range(node.index << node.level, min((node.index + 1) << node.level, num_leaves)))


def expression(num_leaves: int, nodes: list[Node]) -> str:
    """The sum as a text with brackets: equal texts are equal bits."""

    def text(node: Node) -> str:
        names = sorted(leaves_of(node, num_leaves))
        return str(names[0]) if len(names) == 1 else _whole(names, num_leaves)

    values = {node: text(node) for node in nodes}
    todo, left = additions(nodes, num_leaves)
    for one, other, total in todo:
        values[total] = f"({values[one]}+{values[other]})"
    assert left == [root(num_leaves)]
    return values[left[0]]


def _whole(names: list[int], num_leaves: int) -> str:
    """What a worker makes of a subtree that it holds alone."""
    todo, left = additions([Node(0, name) for name in names], num_leaves)
    values = {node: str(names[0]) for node in left}
    values |= {_lifted(name, names, num_leaves): str(name) for name in names}
    for one, other, total in todo:
        values[total] = f"({values[one]}+{values[other]})"
    return values[left[0]]


def _lifted(name: int, names: list[int], num_leaves: int) -> Node:
    return cover([name], num_leaves)[0]


@given(num_leaves=st.integers(1, 40), data=st.data())
def test_every_world_adds_in_the_same_order(num_leaves: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, num_leaves))
    plan = plan_step(num_leaves=num_leaves, size=size)
    nodes = [node for rank in range(size) for node in cover(plan.leaves(rank), num_leaves)]

    assert expression(num_leaves, nodes) == expression(num_leaves, [root(num_leaves)])


@given(num_leaves=st.integers(1, 40), data=st.data())
def test_a_cover_holds_exactly_its_leaves(num_leaves: int, data: st.DataObject) -> None:
    leaves = data.draw(st.sets(st.integers(0, num_leaves - 1), min_size=1))

    parts = [leaves_of(node, num_leaves) for node in cover(leaves, num_leaves)]

    assert set().union(*parts) == leaves
    assert sum(map(len, parts)) == len(leaves)


@given(num_leaves=st.integers(1, 30), data=st.data())
def test_after_a_loss_every_leaf_has_one_owner_and_what_is_held_stays(num_leaves: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, num_leaves))
    owners = data.draw(st.lists(st.integers(-1, size - 1), min_size=num_leaves, max_size=num_leaves))
    held = [[leaf for leaf, owner in enumerate(owners) if owner == rank] for rank in range(size)]

    plan = plan_step(num_leaves=num_leaves, size=size, held=held)

    assert sorted(leaf for rank in range(size) for leaf in plan.leaves(rank)) == list(range(num_leaves))
    assert [list(leaves) for leaves in plan.held] == held


def test_missing_leaves_go_to_those_with_the_fewest() -> None:
    plan = plan_step(num_leaves=8, size=3, held=[[0, 1, 2], [3], [4, 5]])

    assert [len(plan.leaves(rank)) for rank in range(3)] == [3, 3, 2]


@pytest.mark.parametrize("size", [0, 5])
def test_more_workers_than_leaves_cannot_share(size: int) -> None:
    with pytest.raises(UsageError, match=f"{size} workers cannot share 4 leaves"):
        plan_step(num_leaves=4, size=size)
