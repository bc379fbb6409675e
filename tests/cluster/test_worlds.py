"""The same bits for every number of workers, dividing the leaves or not."""

from __future__ import annotations

import pytest

from stage import Stage


@pytest.mark.parametrize(
    ("leaves", "workers", "optimizer"), [(5, 2, "adam"), (6, 4, "sgd"), (7, 3, "adam"), (7, 5, "sgd")]
)
def test_odd_leaves_over_uneven_worlds_give_the_bits_of_one(leaves: int, workers: int, optimizer: str) -> None:
    with Stage("--steps", 12, "--leaves", leaves, "--optimizer", optimizer, workers=workers) as cluster:
        result = cluster.finish_undisturbed()

    assert len(result.outputs) == workers
