"""Keys of a job file that describe an experiment: its searcher, and what its trials get."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from everstep.errors import UsageError
from everstep.job_file.fields import Section, Text, checked, key

_NAMES = ("single", "random", "grid", "async_halving", "adaptive_asha", "tpe", "cmaes", "gp", "qmc", "custom")

Count = Annotated[int, Field(ge=1)]
Length = Count | dict[Literal["batches", "records", "epochs"], Count]


class Searcher(Section):
    """The hyperparameter search, with Determined's names. `single` is one run with the given hyperparameters."""

    name: Literal[_NAMES] = key("single", f"Search method: {', '.join(_NAMES)}. See docs/search.md.")  # type: ignore[valid-type]
    metric: Text | None = key(None, "Metric that decides which trial and which checkpoint is best.")
    smaller_is_better: bool = key(True, "Whether a smaller value of the metric is better.")
    max_length: Length | None = key(None, "Length of a trial: {batches: 937}, records or epochs.")
    max_trials: Count | None = key(None, "Number of trials.")
    max_concurrent_trials: int | None = key(
        None, "Number of trials at a time, at most [16]; 0: as many as sensible.", ge=0
    )
    order: Literal["exact", "arrival"] | None = key(
        None, "exact [default]: the same search for any number of slots. arrival: who is first decides."
    )
    cohort: Count | None = key(None, "Number of trials that are compared with each other.")
    mode: Literal["standard", "aggressive", "conservative"] | None = key(
        None, "Of adaptive_asha: how early trials are stopped [standard]."
    )
    divisor: float | None = key(None, "Of halving: one in this many trials continues [4].", gt=1)
    max_rungs: Count | None = key(None, "Of adaptive_asha: most rungs [5].")
    num_rungs: Count | None = key(None, "Of async_halving: number of rungs [5].")
    bracket_rungs: tuple[int, ...] = key((), "Of adaptive_asha: rungs of each bracket, instead of mode.")
    stop_once: bool | None = key(None, "Of halving in order of arrival: whether a stopped trial stays stopped.")
    max_time: Count | None = key(None, "Of halving, instead of max_length: length in units of time_metric.")
    time_metric: Text | None = key(None, "Of halving, with max_time: what counts the length, such as batches.")
    unit: Literal["batches", "records", "epochs"] | None = key(None, "Of custom: the unit of lengths [batches].")
    source_trial_id: int | None = key(None, "Every trial starts from the newest checkpoint of this trial.", ge=0)
    source_checkpoint_uuid: Text | None = key(None, "Every trial starts from this checkpoint.")


def _label_names(given: Any) -> Any:
    """Determined's labels have no values."""
    if isinstance(given, list | tuple) and all(isinstance(each, str | int | float) for each in given):
        return {str(each): "" for each in given}
    return given


Labels = Annotated[
    dict[str, Text], BeforeValidator(_label_names, json_schema_input_type=dict[str, str] | list[str | int | float])
]


def _check_line(pattern: str) -> str:
    try:
        num_groups = re.compile(pattern).groups
    except re.error as error:
        message = f"{pattern!r} is not a regular expression: {error}"
        raise UsageError(message, hint=r"'val_loss=(?P<metric>\S+)'", code="metric-line-invalid") from None
    if not num_groups:
        raise UsageError(
            f"{pattern!r} has no group: which part of the line is the metric?",
            hint=r"'val_loss=(?P<metric>\S+)', and optionally (?P<step>\d+)",
            code="metric-line-without-group",
        )
    return pattern


MetricLine = Annotated[Text, AfterValidator(checked(_check_line))]
