"""Randomness in a step: of each seed, step and micro-batch its own, and the same for ever."""

from __future__ import annotations

from itertools import product

from everstep.engine.seeds import micro_batch_seed


def test_each_seed_step_and_micro_batch_has_a_stream_of_its_own() -> None:
    assert len({micro_batch_seed(*key) for key in product(range(12), repeat=3)}) == 12**3


def test_the_seeds_are_frozen() -> None:
    assert [micro_batch_seed(0, 0, 0), micro_batch_seed(7, 3, 1)] == [7425768923526624474, 7426049909750143133]
