"""Which saves the workers of a world write together."""

from __future__ import annotations

import torch.distributed as dist

from everstep.checkpoint.agreement import Agreement, Mark, Place, Word


def world(size: int) -> list[Agreement]:
    """The workers of one world, by rank."""
    store = dist.HashStore()
    return [Agreement(Place(generation=2, rank=rank, size=size), "/ckpt", store) for rank in range(size)]


def save(worker: Agreement, step: int) -> tuple[Mark, Word | None]:
    return worker.mark(step), worker.settle(is_sharded=False, base=lambda: 0)


def test_all_write_the_same_saves_together() -> None:
    first, second = world(2)
    together = []
    for step in range(6):
        (mark, word), (other_mark, other_word) = save(first, step), save(second, step)
        assert word is not None and mark == other_mark
        assert word.is_split == (other_word is not None) and (not word.is_split or word == other_word)
        together.append(word.is_split)
    assert together == sorted(together) and any(together) and not together[0]


def test_a_worker_that_saves_the_last_step_of_the_world_before_in_this_one_keeps_in_time_with_the_others() -> None:
    """It was late when that world broke, and got the step from its peers, who had saved it there."""
    first, late = world(2)
    save(late, 8)
    together = []
    for step in range(9, 15):
        (mark, word), (other_mark, other_word) = save(first, step), save(late, step)
        assert word is not None and mark == other_mark
        assert word.is_split == (other_word is not None)
        together.append(word.is_split)
    assert any(together)


def test_nobody_is_waited_for_where_rank_0_alone_saves() -> None:
    first, _ = world(2)
    assert [word.is_split for _, word in (save(first, step) for step in range(9)) if word] == [False] * 9


def test_saves_of_the_same_step_and_of_steps_done_again_have_names_of_their_own() -> None:
    (alone,) = world(1)
    marks = [save(alone, step)[0] for step in (5, 5, 6, 5, 5, 7)]
    assert len(set(marks)) == 6
    assert [mark.num_returns for mark in marks] == [0, 0, 0, 1, 1, 1]
