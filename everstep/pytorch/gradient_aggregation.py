"""Gradients gathered over several batches before the optimizer steps: part of the state, so that no loss costs any."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from everstep.errors import StateMismatch


class Gathered:
    """Of one optimizer: the sums of the mean gradients of the batches since its last step."""

    def __init__(self, optimizer: Optimizer, *, is_mean: bool) -> None:
        self._optimizer = optimizer
        self._is_mean = is_mean
        self._sums: dict[int, torch.Tensor] = {}  # by place of the parameter
        self.num_batches = 0

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def add(self) -> None:
        """The gradients of this batch, of which its parameters hold the mean over all workers."""
        self.num_batches += 1
        for place, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                continue
            if place in self._sums:
                self._sums[place].add_(parameter.grad)
            else:
                self._sums[place] = parameter.grad.clone()

    def give(self) -> None:
        """Put the sums with this batch's, or their mean, where the optimizer looks for gradients. They are kept until
        it has stepped: the step may break off, and be done again from a checkpoint."""
        for place, parameter in enumerate(self.parameters):
            parts = [each for each in (self._sums.get(place), parameter.grad) if each is not None]
            if parts:
                total = parts[0] + parts[1] if len(parts) > 1 else parts[0].clone()
                parameter.grad = total.div_(self.num_batches + 1) if self._is_mean else total

    def clear(self) -> None:
        self._sums, self.num_batches = {}, 0

    def state_dict(self) -> dict[str, Any]:
        return {"num_batches": self.num_batches, "sums": [[place, each] for place, each in self._sums.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        parameters, sums = self.parameters, {}
        for place, tensor in state["sums"]:
            if place >= len(parameters) or parameters[place].shape != tensor.shape:
                raise StateMismatch("the gradients that were gathered are not those of this optimizer's parameters")
            sums[place] = tensor.to(parameters[place].device, copy=True)
        self._sums, self.num_batches = sums, state["num_batches"]
