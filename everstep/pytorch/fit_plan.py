"""What a fit has to do: its length and periods from the arguments of `fit` and the job file, and what is due after a
batch, decided from the progress alone: the same on all workers. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everstep.errors import UsageError
from everstep.pytorch.progress import BatchProgress
from everstep.pytorch.train_units import Batch, Epoch, Record, TrainUnit, check_unit

POLICIES = ("best", "all", "none")


@dataclass(frozen=True, kw_only=True, slots=True)
class FitPlan:
    length: TrainUnit
    reporting: TrainUnit
    validation: TrainUnit | None = None
    checkpoint: TrainUnit | None = None
    policy: str = "best"  # what to save after a validation
    metric: str | None = None  # decides what "best" means
    smaller_is_better: bool = True
    is_test: bool = False

    def is_better(self, value: float, best: float | None) -> bool:
        if math.isnan(value):
            return False
        return best is None or (value < best if self.smaller_is_better else value > best)

    def length_in_batches(self, *, per_epoch: int, global_batch: int) -> int | None:
        """For progress and ETA; None: a time."""
        length = self.length
        if isinstance(length, Batch):
            return int(length.count)
        if isinstance(length, Epoch):
            return int(length.count) * per_epoch
        return math.ceil(length.count / global_batch) if isinstance(length, Record) else None


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
    if is_preempted:
        return DueActions(checkpoint=True, is_end=True, reason="all workers were asked to leave")
    is_reached = plan.length.is_reached(now)
    is_end = is_reached or is_stopping
    return DueActions(
        report=is_end or plan.reporting.is_due(before, now),
        validate=is_end or (plan.validation is not None and plan.validation.is_due(before, now)),
        checkpoint=is_end or (plan.checkpoint is not None and plan.checkpoint.is_due(before, now)),
        is_end=is_end,
        reason=f"{plan.length} reached" if is_reached else "a stop was requested" if is_stopping else "",
    )


def make_plan(
    exp_conf: Mapping[str, Any],
    *,
    length: object,
    checkpoint: object,
    validation: object,
    reporting: object,
    policy: object,
    is_test: bool,
) -> FitPlan:
    """From the arguments of `fit`; the job file's searcher gives the length where they do not, and the metric."""
    searcher = exp_conf.get("searcher") or {}
    if length is None:
        length = _configured_length(exp_conf)
    if length is None and not is_test:
        raise UsageError(
            "fit() without max_length", hint="give it here, or in the job file's searcher", code="max-length-missing"
        )
    if policy not in POLICIES:
        raise UsageError(
            f"checkpoint_policy={policy!r}", hint=f"use one of {POLICIES}", code="checkpoint-policy-unknown"
        )
    if reporting is None:
        raise UsageError("reporting_period=None", hint="leave it out for Batch(100)", code="reporting-period-missing")
    return FitPlan(
        length=Batch(1) if is_test else check_unit("max_length", length, is_length=True),
        reporting=check_unit("reporting_period", reporting),
        validation=None if validation is None else check_unit("validation_period", validation),
        checkpoint=None if checkpoint is None else check_unit("checkpoint_period", checkpoint),
        policy=str(policy),
        metric=searcher.get("metric"),
        smaller_is_better=bool(searcher.get("smaller_is_better", True)),
        is_test=is_test,
    )


def _configured_length(exp_conf: Mapping[str, Any]) -> TrainUnit | None:
    """The job file's searcher.max_length: {batches: n}, {epochs: n} or {records: n}."""
    given = (exp_conf.get("searcher") or {}).get("max_length")
    if given is None:
        return None
    if isinstance(given, int):
        return Batch(given)
    units = {"batches": Batch, "epochs": Epoch, "records": Record}
    if not isinstance(given, Mapping) or len(given) != 1 or next(iter(given)) not in units:
        raise UsageError(
            f"searcher.max_length: {given!r}",
            hint="one of batches, epochs, records: {batches: 937}",
            code="searcher-max-length-unknown",
        )
    ((unit, value),) = given.items()
    if unit == "records" and "global_batch_size" not in (exp_conf.get("hyperparameters") or {}):
        raise UsageError(
            f"searcher.max_length of {value} records, but no global_batch_size",
            hint="add global_batch_size to hyperparameters, or give the length in batches or epochs",
            code="searcher-max-length-without-batch-size",
        )
    return units[unit](value)
