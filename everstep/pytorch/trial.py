"""`PyTorchTrial`: the class that a user writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch.utils import data

from everstep.engine.arguments import check_kind
from everstep.errors import UsageError
from everstep.pytorch.batches import batch_length
from everstep.pytorch.callbacks import PyTorchCallback
from everstep.pytorch.reducers import Reducer

TorchData = dict[str, torch.Tensor] | Sequence[torch.Tensor] | torch.Tensor


class PyTorchTrial:
    """Subclass it. `__init__` takes the context first, then any arguments of yours; wrap models and optimizers there,
    or before.

    A global batch consists of micro-batches. `train_batch` is called once for each micro-batch that this worker
    computes, each time with the same batch_idx; the indexes count through the whole training. Define either
    evaluate_batch, whose batches are divided among the workers, or evaluate_full_dataset, which only the chief runs."""

    trial_context_class: ClassVar[Any] = None

    def __init__(self, context: Any, *args: Any, **kwargs: Any) -> None: ...

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> torch.Tensor | dict[str, Any]:
        raise NotImplementedError

    def build_training_data_loader(self) -> data.DataLoader[Any]:
        raise NotImplementedError

    def build_validation_data_loader(self) -> data.DataLoader[Any]:
        raise NotImplementedError

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return {}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        raise NotImplementedError

    def evaluate_full_dataset(self, data_loader: data.DataLoader[Any]) -> dict[str, Any]:
        raise NotImplementedError

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        return Reducer.AVG

    def get_batch_length(self, batch: Any) -> int:
        """The number of samples in a batch, where the dataset does not say."""
        return batch_length(batch)


def overrides(trial: PyTorchTrial, method: str) -> bool:
    return getattr(type(trial), method, None) is not getattr(PyTorchTrial, method)


def check_trial(trial: Any) -> None:
    check_kind("Trainer", trial, PyTorchTrial, hint="subclass everstep.pytorch.PyTorchTrial", code="not-a-trial")
    for method in ("train_batch", "build_training_data_loader", "build_validation_data_loader"):
        if not overrides(trial, method):
            raise UsageError(
                f"{type(trial).__name__} has no {method}", hint=f"define {method}()", code="trial-method-missing"
            )
    number = overrides(trial, "evaluate_batch") + overrides(trial, "evaluate_full_dataset")
    if number != 1:
        raise UsageError(
            f"{type(trial).__name__} defines {'both' if number else 'neither'} of evaluate_batch and "
            "evaluate_full_dataset",
            hint="define evaluate_batch (divided among the workers) or evaluate_full_dataset (run by the chief alone)",
            code="trial-needs-one-evaluation",
        )
