"""Whoever computes which micro-batches, the additions are the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.engine.plan import plan_step
from everstep.engine.tree import TreeNode, additions, cover, root
from everstep.errors import UsageError


def micro_batches_of(node: TreeNode, num_micro_batches: int) -> set[int]:
    return set(range(node.index << node.level, min((node.index + 1) << node.level, num_micro_batches)))


def expression(num_micro_batches: int, nodes: list[TreeNode]) -> str:
    """The sum as a text with brackets: equal texts are equal bits."""

    def text(node: TreeNode) -> str:
        names = sorted(micro_batches_of(node, num_micro_batches))
        return str(names[0]) if len(names) == 1 else _whole(names, num_micro_batches)

    values = {node: text(node) for node in nodes}
    todo, left = additions(nodes, num_micro_batches)
    for one, other, total in todo:
        values[total] = f"({values[one]}+{values[other]})"
    assert left == [root(num_micro_batches)]
    return values[left[0]]


def _whole(names: list[int], num_micro_batches: int) -> str:
    """What a worker makes of a subtree that it holds alone."""
    todo, left = additions([TreeNode(0, name) for name in names], num_micro_batches)
    values = {node: str(names[0]) for node in left}
    values |= {_lifted(name, names, num_micro_batches): str(name) for name in names}
    for one, other, total in todo:
        values[total] = f"({values[one]}+{values[other]})"
    return values[left[0]]


def _lifted(name: int, names: list[int], num_micro_batches: int) -> TreeNode:
    return cover([name], num_micro_batches)[0]


@given(num_micro_batches=st.integers(1, 40), data=st.data())
def test_every_world_adds_in_the_same_order(num_micro_batches: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, num_micro_batches))
    plan = plan_step(num_micro_batches=num_micro_batches, size=size)
    nodes = [node for rank in range(size) for node in cover(plan.micro_batches(rank), num_micro_batches)]

    assert expression(num_micro_batches, nodes) == expression(num_micro_batches, [root(num_micro_batches)])


@given(num_micro_batches=st.integers(1, 40), data=st.data())
def test_a_cover_holds_exactly_its_micro_batches(num_micro_batches: int, data: st.DataObject) -> None:
    micro_batches = data.draw(st.sets(st.integers(0, num_micro_batches - 1), min_size=1))

    parts = [micro_batches_of(node, num_micro_batches) for node in cover(micro_batches, num_micro_batches)]

    assert set().union(*parts) == micro_batches
    assert sum(map(len, parts)) == len(micro_batches)


@pytest.mark.parametrize("held", [None, [[], [], [], []], [[0], [], [5, 6], []]], ids=["none", "nothing", "some"])
def test_resting_workers_get_nothing_and_the_others_get_everything(held: list[list[int]] | None) -> None:
    plan = plan_step(num_micro_batches=8, size=4, held=held, shares=(5, 1, 1, 1), resting=[1, 3])

    assert plan.micro_batches(1) == plan.micro_batches(3) == ()
    assert sorted(plan.micro_batches(0) + plan.micro_batches(2)) == list(range(8))
    assert len(plan.micro_batches(0)) == len(plan.micro_batches(2)) == 4


@given(num_micro_batches=st.integers(1, 30), data=st.data())
def test_after_a_loss_every_micro_batch_has_one_owner_and_what_is_held_stays(
    num_micro_batches: int, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, num_micro_batches))
    owners = data.draw(st.lists(st.integers(-1, size - 1), min_size=num_micro_batches, max_size=num_micro_batches))
    held = [[micro_batch for micro_batch, owner in enumerate(owners) if owner == rank] for rank in range(size)]

    plan = plan_step(num_micro_batches=num_micro_batches, size=size, held=held)

    assert sorted(micro_batch for rank in range(size) for micro_batch in plan.micro_batches(rank)) == list(
        range(num_micro_batches)
    )
    assert [list(micro_batches) for micro_batches in plan.held] == held


def test_missing_micro_batches_go_to_those_with_the_fewest() -> None:
    plan = plan_step(num_micro_batches=8, size=3, held=[[0, 1, 2], [3], [4, 5]])

    assert [len(plan.micro_batches(rank)) for rank in range(3)] == [3, 3, 2]


@pytest.mark.parametrize("size", [0, 5])
def test_more_workers_than_micro_batches_cannot_share(size: int) -> None:
    with pytest.raises(UsageError, match=f"{size} workers cannot share 4 micro-batches"):
        plan_step(num_micro_batches=4, size=size)
