"""Callbacks: a user's code that runs at certain points of the training."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from everstep.engine.arguments import check_count, check_kind
from everstep.errors import UsageError

log = logging.getLogger("everstep")


class PyTorchCallback:
    """Subclass it, override the hooks you need, and return instances from PyTorchTrial.build_callbacks.

    Every hook runs on all workers, between steps, at the same step, in the order of build_callbacks. Each `state_dict`
    is saved in checkpoints and sent to workers that join later."""

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None: ...

    def on_trial_shutdown(self) -> None:
        """Also after an exception."""

    def on_training_start(self) -> None: ...

    def on_training_epoch_start(self, epoch_idx: int) -> None: ...

    def on_training_epoch_end(self, epoch_idx: int) -> None: ...

    def on_training_batch_start(self, epoch_idx: int, batch_idx: int) -> None:
        """Before this worker's first micro-batch of a batch."""

    def on_training_batch_end(self, epoch_idx: int, batch_idx: int, metrics: dict[str, Any]) -> None:
        """After a batch is committed. `metrics`: the means over the micro-batches that this worker has computed."""

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        """At the end of a reporting period, with its averages over all workers and the metrics of each batch."""

    def on_validation_start(self) -> None: ...

    def on_validation_epoch_start(self) -> None: ...

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """`outputs`: the results of evaluate_batch, in the order of the data."""

    def on_validation_end(self, metrics: dict[str, Any]) -> None: ...

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None: ...

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """May add to the checkpoint."""

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """When the checkpoint is durable; on the chief alone."""

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """When the checkpoint is durable."""

    def on_exception(self, error: BaseException) -> None:
        """An exception ends the training. After this hook, the state in memory is saved."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class EarlyStopping(PyTorchCallback):
    """Stops the training when a validation metric has not improved for `patience` validations."""

    def __init__(
        self, context: Any, metric: str, *, patience: int = 3, min_delta: float = 0.0, smaller_is_better: bool = True
    ) -> None:
        check_count("patience", patience, of="validations", code="patience-not-positive")
        self._context, self.metric, self.patience = context, metric, patience
        self._delta, self._sign = min_delta, 1 if smaller_is_better else -1
        self.best: float | None = None
        self.num_worse = 0

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        if self.metric not in metrics:
            raise UsageError(
                f"EarlyStopping watches {self.metric!r}, which is not among the metrics",
                hint=f"use one of {sorted(metrics)}",
                code="early-stopping-metric-missing",
            )
        value = float(metrics[self.metric])
        is_better = self.best is None or self._sign * value < self._sign * self.best - self._delta
        if is_better and not math.isnan(value):
            self.best, self.num_worse = value, 0
            return
        self.num_worse += 1
        if self.num_worse >= self.patience:
            log.info("%s has not improved on %s for %d validations", self.metric, self.best, self.num_worse)
            self._context.set_stop_requested(True)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "num_worse": self.num_worse}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.num_worse = state_dict["best"], state_dict["num_worse"]


class Callbacks:
    """All callbacks of a trial, called in order."""

    def __init__(self, given: Any) -> None:
        hint = 'return a dict: {"name": callback}'
        check_kind("build_callbacks", given, Mapping, hint=hint, code="callbacks-not-a-dict")
        self.all: dict[str, PyTorchCallback] = dict(given)
        for name, each in self.all.items():
            check_kind(f"callback {name!r}", each, PyTorchCallback, hint="subclass it", code="not-a-callback")

    def call(self, hook: str, *args: Any) -> None:
        for each in self.all.values():
            _call(getattr(each, hook), args)

    def call_all(self, hook: str, *args: Any) -> None:
        """Even if one raises; the first error is raised at the end."""
        errors: list[BaseException] = []
        for each in self.all.values():
            try:
                _call(getattr(each, hook), args)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    @property
    def has_batch_hooks(self) -> bool:
        return any(
            getattr(type(each), hook) is not getattr(PyTorchCallback, hook)
            for each in self.all.values()
            for hook in ("on_training_batch_start", "on_training_batch_end")
        )

    def state_dict(self) -> dict[str, Any]:
        return {name: each.state_dict() for name, each in self.all.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, each in self.all.items():
            if name in state:
                each.load_state_dict(state[name])
        if unknown := sorted(set(state) - set(self.all)):
            log.warning("ignored the state of callbacks %s: build_callbacks does not name them", unknown)


def _call(hook: Callable[..., None], args: tuple[Any, ...]) -> None:
    """Old scripts define the epoch hooks without epoch_idx."""
    if len(args) == 1 and hook.__name__.startswith("on_training_epoch") and not inspect.signature(hook).parameters:
        hook()
    else:
        hook(*args)
