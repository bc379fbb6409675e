"""The mean of a sum: a division with the same bits on every device. A step's sum is divided once, by its weight."""

from __future__ import annotations

import torch
from torch import Tensor

_NARROW = (torch.float16, torch.bfloat16)


def divide(sums: Tensor, weight: float) -> None:
    """Divide in place, by a tensor on the same device: given a number, torch's CUDA kernels multiply by the reciprocal,
    which rounds differently from a division on the CPU. The tensor is filled on the device, because copying it there
    would make the host wait. Narrow types are divided as float32, which can hold the weight."""
    if weight == 1:
        return
    wide = sums.float() if sums.dtype in _NARROW else sums
    wide.div_(torch.full((), weight, dtype=wide.dtype, device=wide.device))
    if wide is not sums:
        sums.copy_(wide)
