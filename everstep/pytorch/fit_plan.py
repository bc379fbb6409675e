"""What a fit has to do: its length and periods from the arguments of `fit` and the job file, and what is due after a
batch, decided from the progress alone: the same on all workers. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everstep.errors import UsageError
from everstep.pytorch.config_lengths import configured_length, configured_period
from everstep.pytorch.progress import BatchProgress
from everstep.pytorch.train_units import Batch, Epoch, Record, TrainUnit, check_unit
from everstep.search.config import is_smaller_better

POLICIES = ("best", "all", "none")
UNBOUNDED = Batch(1 << 53)  # the search alone decides how long a trial trains


@dataclass(frozen=True, kw_only=True, slots=True)
class FitPlan:
    length: TrainUnit
    target: TrainUnit | None = None  # of a search: here all validate, save, and ask how to continue
    reporting: TrainUnit
    validation: TrainUnit | None = None
    checkpoint: TrainUnit | None = None
    policy: str = "best"  # what to save after a validation
    metric: str | None = None  # decides what "best" means
    smaller_is_better: bool = True
    is_test: bool = False

    def is_better(self, value: float, best: float | None) -> bool:
        if not math.isfinite(value):
            return False
        return best is None or (value < best if self.smaller_is_better else value > best)

    def length_in_batches(self, *, per_epoch: int, global_batch: int) -> int | None:
        """For progress and ETA; None: a time."""
        length = self.length if self.target is None else self.target
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
    is_target: bool = False
    is_end: bool = False
    reason: str = ""

    @property
    def is_anything(self) -> bool:
        return self.report or self.validate or self.checkpoint or self.is_target or self.is_end


def decide_due(
    plan: FitPlan, before: BatchProgress, now: BatchProgress, *, is_stopping: bool, is_preempted: bool
) -> DueActions:
    """After the batch between `before` and `now`."""
    if is_preempted:
        return DueActions(checkpoint=True, is_end=True, reason="all workers were asked to leave")
    is_reached = plan.length.is_reached(now)
    is_target = plan.target is not None and plan.target.is_reached(now)
    is_end = is_reached or is_stopping
    is_halt = is_target or is_end
    return DueActions(
        report=is_halt or plan.reporting.is_due(before, now),
        validate=is_halt or (plan.validation is not None and plan.validation.is_due(before, now)),
        checkpoint=is_halt or (plan.checkpoint is not None and plan.checkpoint.is_due(before, now)),
        is_target=is_target,
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
    is_trial: bool = False,
) -> FitPlan:
    """From the arguments of `fit`. Where they say nothing, the job file does: its searcher's max_length, and
    min_validation_period and min_checkpoint_period; its searcher also has the metric.

    is_trial: of a search, which says how long to train; the length counts only where it says nothing."""
    searcher = exp_conf.get("searcher") or {}
    is_test = is_test or exp_conf.get("test_mode") is True  # of `everstep e create --test`
    if length is None:
        length = configured_length(exp_conf) or (UNBOUNDED if is_trial else None)
    if not is_test:
        validation = configured_period(exp_conf, "min_validation_period") if validation is None else validation
        checkpoint = configured_period(exp_conf, "min_checkpoint_period") if checkpoint is None else checkpoint
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
        smaller_is_better=is_smaller_better(searcher),
        is_test=is_test,
    )
