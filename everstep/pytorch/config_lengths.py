"""Lengths and periods of the job file: a number of batches, or {batches: n}, {epochs: n}, {records: n}. Pure.

An epoch is a pass over the training data, which the Trainer knows: it does not need `records_per_epoch`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.errors import UsageError
from everstep.pytorch.train_units import Batch, Epoch, Record, TrainUnit

UNITS: Mapping[str, type[TrainUnit]] = {"batches": Batch, "epochs": Epoch, "records": Record}


def configured_length(exp_conf: Mapping[str, Any]) -> TrainUnit | None:
    """The searcher's max_length."""
    given = (exp_conf.get("searcher") or {}).get("max_length")
    if given is None:
        return None
    if isinstance(given, int):
        return Batch(given)
    if not isinstance(given, Mapping) or len(given) != 1 or next(iter(given)) not in UNITS:
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
    return UNITS[unit](value)


def configured_period(exp_conf: Mapping[str, Any], key: str) -> TrainUnit | None:
    """min_validation_period or min_checkpoint_period; 0 means none."""
    given = exp_conf.get(key)
    if not given:
        return None
    if isinstance(given, int) and not isinstance(given, bool):
        return Batch(given)
    if not isinstance(given, Mapping) or len(given) != 1 or next(iter(given)) not in UNITS:
        raise UsageError(
            f"{key}: {given!r}", hint="one of batches, epochs, records: {batches: 100}", code="config-period-unknown"
        )
    ((unit, value),) = given.items()
    return UNITS[unit](value) if value else None
