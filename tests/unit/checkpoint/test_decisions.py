"""What is kept, what is due, and the order of checkpoints: pure decisions."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from everstep.checkpoint.manifest import CheckpointKey, Manifest, RetentionPolicy, parse_folder
from everstep.checkpoint.policy import Found, best_first, decide_due, decide_lineage, decide_retention


def at(step: int, metric: float | None = None, *, generation: int = 0, is_whole: bool = True) -> Found:
    metrics = {} if metric is None else {"loss": metric}
    found = Manifest(generation=generation, step=step, save="s", time=0.0, metrics=metrics)
    return Found(key=found.key, manifest=found, problem="" if is_whole else "a file is missing")


def deleted(found: list[Found], policy: RetentionPolicy) -> list[int]:
    return sorted(key.step for key in decide_retention(found, policy).delete)


def test_the_latest_and_the_best_are_kept() -> None:
    found = [at(1, 0.5), at(2, 0.1), at(3, 0.4), at(4, 0.3), at(5, 0.2)]

    assert deleted(found, RetentionPolicy(keep_latest=2, keep_best=1, metric="loss")) == [1, 3]
    assert deleted(found, RetentionPolicy(keep_latest=1, keep_best=1, metric="loss", mode="max")) == [2, 3, 4]
    assert deleted(found, RetentionPolicy(keep_latest=None)) == []


def test_a_broken_newest_one_does_not_cost_the_newest_whole_one() -> None:
    found = [at(1), at(2), at(3, is_whole=False)]

    assert deleted(found, RetentionPolicy(keep_latest=1)) == [1]


def test_what_is_being_written_is_left_alone_and_what_died_is_swept() -> None:
    found = [at(1, is_whole=False), at(2), at(3, is_whole=False), at(4), at(5, is_whole=False)]

    assert deleted(found, RetentionPolicy(keep_latest=1)) == [1, 2, 3]


def test_without_a_whole_one_nothing_is_deleted() -> None:
    assert deleted([at(1, is_whole=False), at(2, is_whole=False)], RetentionPolicy()) == []


def test_what_is_not_finite_is_never_the_best() -> None:
    found = [at(1, math.nan), at(2, 1.0), at(3, None), at(4, math.inf), at(5, -math.inf)]
    for mode in ("min", "max"):
        assert [each.key.step for each in best_first(found, RetentionPolicy(metric="loss", mode=mode))] == [2]


def test_a_shorter_history_never_deletes_the_newest_of_another() -> None:
    """All members were lost, and a worker with an old state went on: hours of training are in the old history."""
    old = [at(9_900, generation=1), at(10_000, generation=1)]
    policy = RetentionPolicy(keep_latest=2)

    assert deleted([*old, at(100, generation=2), at(200, generation=2)], policy) == [9_900]
    assert deleted([*old, *(at(step, generation=2) for step in (100, 200, 300))], policy) == [100, 9_900]
    gone_further = [at(step, generation=2) for step in (9_950, 10_050)]
    assert deleted([*old, *gone_further], policy) == [9_900, 10_000]  # it holds no more than the new one does


standings = st.lists(
    st.builds(
        at,
        st.integers(0, 50),
        st.none() | st.floats(),
        generation=st.integers(0, 3),
        is_whole=st.booleans(),
    ),
    unique_by=lambda each: each.key,
)


@given(standings, st.integers(1, 4), st.integers(0, 3), st.sampled_from(["min", "max"]))
def test_retention_never_deletes_the_newest_whole_one_nor_the_best(
    found: list[Found], keep_latest: int, keep_best: int, mode: str
) -> None:
    policy = RetentionPolicy(keep_latest=keep_latest, keep_best=keep_best, metric="loss", mode=mode)
    decision = decide_retention(found, policy)

    whole = sorted(each.key for each in found if each.is_whole)
    assert whole[-1:] == [key for key in whole[-1:] if key in decision.keep]
    for best in best_first(found, policy)[:keep_best]:
        assert best.key in decision.keep
    for key in whole:
        newer = [each.step for each in whole if each > key]
        assert key in decision.keep or key.step <= max(newer), "the furthest that training has come is never deleted"
    assert decision.keep.keys() | decision.delete.keys() == {each.key for each in found}
    assert not decision.keep.keys() & decision.delete.keys()


def manifest(generation: int, step: int, *, world_generation: int = 0, job: str = "") -> Manifest:
    return Manifest(generation=generation, step=step, save="s", time=0.0, world_generation=world_generation, job=job)


@given(
    st.none() | st.builds(manifest, st.integers(0, 9), st.integers(0, 99), world_generation=st.integers(0, 9)),
    st.integers(0, 99),
    st.integers(0, 9),
)
def test_what_is_saved_now_comes_after_all_that_is_there(newest: Manifest | None, step: int, generation: int) -> None:
    lineage = decide_lineage(step=step, world_generation=generation, job="", newest=newest)

    key = CheckpointKey(generation=lineage.base + generation, step=step)
    assert key.generation >= 0
    assert newest is None or key > newest.key


def test_a_job_that_goes_on_keeps_its_generations_apart() -> None:
    before = manifest(8, 100, world_generation=2, job="j")

    assert decide_lineage(step=101, world_generation=3, job="j", newest=before).base == 6
    assert decide_lineage(step=101, world_generation=1, job="k", newest=before).base == 8


def test_what_is_saved_now_comes_after_one_that_this_version_cannot_read() -> None:
    """Else its manifest would be overwritten."""
    unread = CheckpointKey(generation=3, step=70)
    lineage = decide_lineage(step=60, world_generation=0, job="", newest=manifest(3, 50), unread=unread)

    assert CheckpointKey(generation=lineage.base, step=60) > unread


def test_folders_sort_as_their_checkpoints_do() -> None:
    keys = [CheckpointKey(generation=g, step=s) for g in (0, 1, 12) for s in (0, 9, 10, 10**9)]

    assert sorted(keys, key=lambda key: key.folder) == keys
    assert [parse_folder(key.folder) for key in keys] == keys
    assert parse_folder("code") is None and parse_folder("000000-1") is None


def test_steps_that_are_due() -> None:
    assert decide_due(20, every=10, is_asked=False).is_due
    assert not decide_due(21, every=10, is_asked=False).is_due
    assert decide_due(21, every=10, is_asked=True).is_due
    assert decide_due(21, every=None, is_asked=False).is_due


def test_a_marked_checkpoint_is_kept_whatever_the_policy_says() -> None:
    found = [Found(key=CheckpointKey(generation=1, step=step)) for step in (1, 2, 3)]
    policy = RetentionPolicy(keep_latest=1, keep_best=0)
    marked = {found[0].key, CheckpointKey(generation=9, step=9)}

    assert set(decide_retention(found, policy).delete) == {found[0].key, found[1].key}
    assert set(decide_retention(found, policy, marked).delete) == {found[1].key}
