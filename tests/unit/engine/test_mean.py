"""The division of a sum by its weight. That a GPU gives the same bits is told in tests/cuda."""

from __future__ import annotations

import numpy
import pytest
import torch

from everstep.engine.mean import divide

WEIGHTS = [1.0, 7.0, 192.0, 0.3, 4099.0, 1e6]  # of which some do not fit into 16 bits


@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_sum_is_divided_and_rounded_once(weight: float) -> None:
    sums = torch.randn(4099, generator=torch.Generator().manual_seed(0))
    wanted = sums.numpy() / numpy.float32(weight)
    divide(sums, weight)
    assert sums.numpy().tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_narrow_sums_are_divided_by_the_whole_weight(weight: float, dtype: torch.dtype) -> None:
    sums = torch.randn(4099, generator=torch.Generator().manual_seed(0)).to(dtype)
    wanted = (sums.float() / torch.full((), weight)).to(dtype)
    divide(sums, weight)
    assert torch.equal(sums, wanted)
