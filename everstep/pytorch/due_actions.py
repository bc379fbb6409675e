"""What is due after a batch, decided from the progress alone: the same on all workers. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everstep.errors import UsageError
from everstep.pytorch.units import Batch, BatchProgress, Epoch, Record, TrainUnit

POLICIES = ("best", "all", "none")


@dataclass(frozen=True, kw_only=True, slots=True)
class FitPlan:
    length: TrainUnit
    reporting: TrainUnit
    validation: TrainUnit | None = None
    checkpoint: TrainUnit | None = None
    policy: str = "best"  # what to save after a validation
    metric: str | None = None  # by which "best" is meant
    smaller_is_better: bool = True
    is_test: bool = False

    def is_better(self, value: float, best: float | None) -> bool:
        if math.isnan(value):
            return False
        return best is None or (value < best if self.smaller_is_better else value > best)


@dataclass(frozen=True, kw_only=True, slots=True)
class DueActions:
    report: bool = False
    validate: bool = False
    checkpoint: bool = False
    is_end: bool = False
    reason: str = ""

    @property
    def is_anything(self) -> bool:
        return self.report or self.validate or self.checkpoint or self.is_end


def decide_due(
    plan: FitPlan, before: BatchProgress, now: BatchProgress, *, is_stopping: bool, is_preempted: bool
) -> DueActions:
    """After the batch between `before` and `now`."""
    reached = plan.length.of(now) >= _number(plan.length)
    is_end = reached or is_stopping or is_preempted
    if is_preempted:
        return DueActions(checkpoint=True, is_end=True, reason="all workers were asked to go")
    reason = f"{plan.length} reached" if reached else "a stop was requested" if is_stopping else ""
    return DueActions(
        report=is_end or plan.reporting.is_due(before, now),
        validate=is_end or (plan.validation is not None and plan.validation.is_due(before, now)),
        checkpoint=is_end or (plan.checkpoint is not None and plan.checkpoint.is_due(before, now)),
        is_end=is_end,
        reason=reason,
    )


def is_done(length: TrainUnit, progress: BatchProgress) -> bool:
    return length.of(progress) >= _number(length)


def length_in_batches(length: TrainUnit, *, per_epoch: int, global_batch: int) -> int | None:
    """For progress and ETA; None: a time."""
    value = int(_number(length))
    if isinstance(length, Batch):
        return value
    if isinstance(length, Epoch):
        return value * per_epoch
    return math.ceil(value / global_batch) if isinstance(length, Record) else None


def configured_length(exp_conf: Mapping[str, Any]) -> TrainUnit | None:
    """The job file's searcher.max_length: {batches: n}, {epochs: n} or {records: n}."""
    given = (exp_conf.get("searcher") or {}).get("max_length")
    if given is None:
        return None
    if isinstance(given, int):
        return Batch(given)
    units = {"batches": Batch, "epochs": Epoch, "records": Record}
    if not isinstance(given, Mapping) or len(given) != 1 or next(iter(given)) not in units:
        raise UsageError(f"searcher.max_length: {given!r}", hint="one of batches, epochs, records: {batches: 937}")
    ((unit, value),) = given.items()
    if unit == "records" and "global_batch_size" not in (exp_conf.get("hyperparameters") or {}):
        raise UsageError(
            f"searcher.max_length of {value} records, but no global_batch_size",
            hint="add global_batch_size to hyperparameters, or give the length in batches or epochs",
        )
    return units[unit](value)


def check_policy(policy: object) -> str:
    if policy not in POLICIES:
        raise UsageError(f"checkpoint_policy={policy!r}", hint=f"use one of {', '.join(map(repr, POLICIES))}")
    return str(policy)


def _number(length: TrainUnit) -> float:
    assert isinstance(length.value, int | float)
    return float(length.value)
