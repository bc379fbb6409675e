"""Gradients aggregated over several batches before the optimizer steps. Part of the state, so none is lost with a
worker."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from everstep.engine.mean import divide
from everstep.errors import StateMismatch


class AggregatedGradients:
    """Of one optimizer: the sums of the mean gradients of the batches since its last step."""

    def __init__(self, optimizer: Optimizer, *, is_mean: bool) -> None:
        self._optimizer = optimizer
        self._is_mean = is_mean
        self._sums: dict[int, torch.Tensor] = {}  # by index of the parameter
        self.num_batches = 0

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def add(self) -> None:
        """Add this batch's gradients: the parameters hold their mean over all workers."""
        self.num_batches += 1
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                continue
            if index in self._sums:
                self._sums[index].add_(parameter.grad)
            else:
                self._sums[index] = parameter.grad.clone()

    def give(self) -> None:
        """Set the parameters' gradients to the sums including this batch, or to their mean. The sums are kept until
        the optimizer has stepped: the step may fail, and be done again from a checkpoint."""
        for index, parameter in enumerate(self.parameters):
            parts = [each for each in (self._sums.get(index), parameter.grad) if each is not None]
            if parts:
                total = parts[0] + parts[1] if len(parts) > 1 else parts[0].clone()
                if self._is_mean:
                    divide(total, self.num_batches + 1)
                parameter.grad = total

    def clear(self) -> None:
        self._sums, self.num_batches = {}, 0

    def state_dict(self) -> dict[str, Any]:
        return {"num_batches": self.num_batches, "sums": [[index, each] for index, each in self._sums.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        parameters, sums = self.parameters, {}
        for index, tensor in state["sums"]:
            if index >= len(parameters) or parameters[index].shape != tensor.shape:
                raise StateMismatch(
                    "aggregated gradients do not fit this optimizer", code="aggregated-gradients-differ"
                )
            sums[index] = tensor.to(parameters[index].device, copy=True)
        self._sums, self.num_batches = sums, state["num_batches"]
