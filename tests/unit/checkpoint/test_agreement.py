"""Which saves the workers of a world write together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from everstep.checkpoint.agreement import Agreement, SaveMark, Word, WorkerPlace
from everstep.errors import CheckpointBroken, CheckpointFailed


def world(size: int, identities: list[str] | None = None) -> list[Agreement]:
    """The workers of one world, by rank; `identities` of the storage as each sees it."""
    store = dist.HashStore()
    seen = identities or ["same"] * size
    return [
        Agreement(
            WorkerPlace(generation=2, rank=rank, size=size), "/ckpt", store, identity=lambda rank=rank: seen[rank]
        )
        for rank in range(size)
    ]


def save(worker: Agreement, step: int) -> tuple[SaveMark, Word | None]:
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


def test_workers_that_see_different_folders_do_not_write_together_and_it_is_told_at_the_first_save(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second, third = world(3, identities=["a", "a", "b"])
    words = [(save(first, step)[1], save(second, step)[1], save(third, step)[1]) for step in range(9)]

    assert [(word.is_split, others) for word, *others in words if word] == [(False, [None, None])] * 9
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2, "once by each side"
    assert "/ckpt is not the same folder for rank 2 as for rank 0: rank 0 alone writes" in told[0]
    assert "rank 2 will not find the checkpoints that rank 0 writes" in told[1]


def test_a_sharded_state_is_refused_by_all_where_workers_see_different_folders() -> None:
    first, second = world(2, identities=["a", "b"])
    with ThreadPoolExecutor(2) as pool:
        for worker in (second, first):
            worker.mark(1)
        saves = [pool.submit(worker.settle, is_sharded=True, base=lambda: 0) for worker in (second, first)]
        for each in saves:
            with pytest.raises(CheckpointFailed, match="not the same folder for rank 1 as for rank 0"):
                each.result(30)


def load(worker: Agreement, unreadable: tuple[str, ...] = ()) -> str:
    """What it loads of the checkpoints "new" and "old"."""
    for index, name in enumerate(worker.candidates(1, lambda: ["new", "old"])):
        if not worker.verdict(1, index, "EIO" if name in unreadable else ""):
            return name
    return ""


@pytest.mark.parametrize("victim", [0, 1])
def test_what_one_worker_cannot_read_nobody_loads(victim: int) -> None:
    workers = world(2)
    workers[0]._store.set("load/1/came/1", "1")
    with ThreadPoolExecutor(2) as pool:
        loads = [pool.submit(load, worker, ("new",) * (worker is workers[victim])) for worker in workers]

        assert [each.result(30) for each in loads] == ["old", "old"]


def test_a_worker_that_comes_later_loads_what_rank_0_has_loaded_or_fails() -> None:
    first, second, third = world(3)

    assert load(first) == "new", "rank 0 waits for no worker: it may load alone"
    assert load(second) == "new"
    with pytest.raises(CheckpointBroken, match="rank 2 cannot read .* rank 0 has loaded: EIO"):
        load(third, ("new",))
