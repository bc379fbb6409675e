"""A model (20 MB) with simulated device arithmetic: the host sleeps while the device computes, then gets gradients.

A third of the time is forward, two thirds backward, each slept in one piece: many short sleeps would each wait for a
busy core when they end. Gradients come layer by layer when the backward sleep is over; they depend on the inputs and
cost the host one pass of writing, as a copy from the device would. So what is measured on few cores is the training
system's own work, not the model's. The model may be on a GPU: the host still sleeps, as if each worker had its own
GPU, and the gradients are on the GPU."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

LAYERS, WIDTH = 8, 800  # 8 × 800 × 800 × 4 bytes = 20.5 MB


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, model: DeviceModel) -> Tensor:
        ctx.model = model
        time.sleep(model.seconds / 3)
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.model.seconds * 2 / 3)
        ctx.model.computed_at = time.monotonic()
        return gradient, None


class _DeviceLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.shape = weight.shape
        return inputs * weight[0, 0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (inputs,) = ctx.saved_tensors
        return gradient, (inputs * gradient).mean().expand(ctx.shape)


class DeviceModel(nn.Module):
    """`seconds` of device time per call, forward and backward together."""

    def __init__(self, seconds: float, width: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(LAYERS))
        self.seconds = seconds
        self.computed_at = 0.0  # the end of the last backward sleep; gradients, and their sum, come after it

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = _DeviceLinear.apply(inputs, layer.weight)
        return _Sleep.apply(inputs, self)  # last: its backward comes first


def batch(step: int, micro_batch: int, width: int = WIDTH) -> Tensor:
    return torch.randn(4, width, generator=torch.Generator().manual_seed(1000 * step + micro_batch))
