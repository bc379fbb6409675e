"""What models on GPUs use: each works with the bits of one worker, through a death, or is refused with a reason."""

from __future__ import annotations

import pytest

from lab import device_stories

CUDA = "cuda"


@pytest.mark.parametrize("model", device_stories.MODELS)
def test_a_model_has_the_bits_of_one_worker_through_a_death(model: str) -> None:
    device_stories.model_through_a_death(model, CUDA)


def test_reentrant_checkpointing_of_the_whole_model_is_refused_with_a_reason() -> None:
    device_stories.whole_reentrant_checkpointing_refused(CUDA)
