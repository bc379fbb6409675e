"""An experiment that names an image runs only where nodes have it."""

from __future__ import annotations

import pytest

from everstep.coordinator.pool.environments import image_problem, images_of

POOLS = {"a": {"train:1"}, "b": {"train:2", "train:3"}, "bare": {""}}


@pytest.mark.parametrize(
    ("config", "images"),
    [
        ({}, set()),
        ({"image": "train:1"}, {"train:1"}),
        ({"environment": {"image": "train:1"}}, {"train:1"}),
        ({"environment": {"image": {"cpu": "train:1", "cuda": "train:2"}}}, {"train:1", "train:2"}),
        ({"environment": ["A=1"]}, set()),
    ],
)
def test_the_images_that_a_file_names(config: dict[str, object], images: set[str]) -> None:
    assert images_of(config) == images


@pytest.mark.parametrize(("wanted", "pool"), [((), "a"), (("train:1",), "a"), (("x",), "bare"), (("x",), "empty")])
def test_a_pool_with_the_image_takes_it_and_so_does_one_without_any(wanted: tuple[str, ...], pool: str) -> None:
    assert image_problem(wanted, pool, POOLS) is None


def test_another_image_is_refused_with_the_pools_that_have_it() -> None:
    message, hint = image_problem(["train:2"], "a", POOLS) or ("", "")
    assert "train:2" in message and "train:1" in message and "pool that has it: b;" in hint
    _, hint = image_problem(["train:9"], "a", POOLS) or ("", "")
    assert "no pool has it" in hint
