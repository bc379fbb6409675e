"""A 20 MB model that sleeps where a device would compute: a third of the time forward, two thirds backward.

It sleeps once each way, in its middle: many short sleeps would each wait for a busy core when they end."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

LAYERS, WIDTH = 8, 800  # 8 × 800 × 800 × 4 bytes = 20.5 MB


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds / 3)
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds * 2 / 3)
        return gradient, None


class DeviceModel(nn.Module):
    """`seconds` of device time per call, forward and backward together."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
        self.seconds = seconds

    def forward(self, inputs: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            if number == LAYERS // 2:
                inputs = _Sleep.apply(inputs, self.seconds)
            inputs = torch.relu(layer(inputs))
        return inputs


def batch(step: int, leaf: int) -> Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1000 * step + leaf))
