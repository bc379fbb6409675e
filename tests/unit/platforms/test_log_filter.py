"""`everstep logs --rank` and `--worker`."""

from __future__ import annotations

from everstep.jobs.log_filter import by_rank, by_worker

LOG = [
    "[w0] hello",
    "[w1] hello",
    "everstep: generation 1 trains with 2 workers from step 0; w1 is rank 0 of 2",
    "everstep: w0 is rank 1 of 2",
    "[w0] a",
    "[w1] b",
    "everstep: generation 2 trains with 1 worker from step 7; w0 is rank 0 of 1",
    "[w0] c",
]


def test_a_worker_is_chosen_by_its_name() -> None:
    assert list(by_worker(LOG, "w0")) == ["[w0] hello", "[w0] a", "[w0] c"]
    assert list(by_worker(["[w10] x"], "w1")) == []


def test_a_rank_is_whoever_has_it_at_that_moment() -> None:
    assert list(by_rank(LOG, 0, {}, follows=False)) == ["[w1] hello", "[w1] b", "[w0] c"]
    assert list(by_rank(LOG, 1, {}, follows=False)) == ["[w0] hello", "[w0] a"]


def test_while_it_is_followed_the_coordinator_knows_whom_the_log_has_not_told_yet() -> None:
    assert list(by_rank(iter(LOG[:2]), 0, {"w1": 0, "w0": 1}, follows=True)) == ["[w1] hello"]


def test_without_any_word_of_ranks_it_is_the_number_in_the_name() -> None:
    assert list(by_rank(["[w0] x", "[w2] y"], 2, {}, follows=False)) == ["[w2] y"]
