"""Keys of a job file that describe an experiment: its searcher, and what its trials get."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from everstep.job_file.fields import Section, Text, checked, key, refusal
from everstep.job_file.metric_line import read_metric_line

_NAMES = ("single", "random", "grid", "async_halving", "adaptive_asha", "tpe", "cmaes", "gp", "qmc", "custom")

Count = Annotated[int, Field(ge=1)]
Length = Count | dict[Literal["batches", "records", "epochs"], Count]


def _check_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        hint = "Python's syntax; for plain text, put a backslash before special characters"
        raise refusal(f"not a regular expression: {error}", hint, code="log-policy-pattern-invalid") from None
    return pattern


Pattern = Annotated[Text, Field(max_length=1000), AfterValidator(_check_pattern)]


def _action_type(given: Any) -> Any:
    """Determined's older files have {type: exclude_node}."""
    return given["type"] if isinstance(given, dict) and set(given) == {"type"} else given


class Searcher(Section):
    """The hyperparameter search, with Determined's names. `single` is one run with the given hyperparameters."""

    name: Literal[_NAMES] = key("single", f"Search method: {', '.join(_NAMES)}. See docs/search.md.")  # type: ignore[valid-type]
    metric: Text | None = key(None, "Metric that decides which trial and which checkpoint is best.")
    smaller_is_better: bool = key(True, "Whether a smaller value of the metric is better.")
    max_length: Length | None = key(None, "Length of a trial: {batches: 937}, {records: 60000} or {epochs: 3}.")
    max_trials: Count | None = key(None, "Number of trials.")
    max_concurrent_trials: int | None = key(
        None, "Maximum number of trials at a time [16]; 0: chosen by the searcher.", ge=0
    )
    order: Literal["exact", "arrival"] | None = key(
        None, "exact [default]: the same search for any number of slots. arrival: the first results decide."
    )
    cohort: Count | None = key(None, "Number of trials that are compared with each other.")
    mode: Literal["standard", "aggressive", "conservative"] | None = key(
        None, "For adaptive_asha: how early trials are stopped [standard]."
    )
    divisor: float | None = key(None, "For halving: one in this many trials continues [4].", gt=1)
    max_rungs: Count | None = key(None, "For adaptive_asha: maximum number of rungs [5].")
    num_rungs: Count | None = key(None, "For async_halving: number of rungs [5].")
    bracket_rungs: tuple[int, ...] = key((), "For adaptive_asha: number of rungs of each bracket, instead of mode.")
    stop_once: bool | None = key(None, "For halving with order: arrival: whether a stopped trial stays stopped.")
    max_time: Count | None = key(None, "For halving, instead of max_length: length in units of time_metric.")
    time_metric: Text | None = key(
        None, "For halving, with max_time: the metric that counts the length, such as batches."
    )
    unit: Literal["batches", "records", "epochs"] | None = key(None, "For custom: the unit of lengths [batches].")
    source_trial_id: int | None = key(None, "Every trial starts from the newest checkpoint of this trial.", ge=0)
    source_checkpoint_uuid: Text | None = key(None, "Every trial starts from this checkpoint.")


class LogPolicySection(Section):
    """What follows if a line of a trial's log matches."""

    name: Annotated[str, Field(max_length=256)] | None = key(
        None, "Name that is shown. The name of a built-in policy (CUDA OOM, ECC Error) replaces that one."
    )
    pattern: Pattern | None = key(
        None, "Regular expression, searched in each line. Without it, the policy of this name is off."
    )
    action: Annotated[
        Literal["exclude_node", "cancel_retries"] | None,
        BeforeValidator(_action_type, json_schema_input_type=str | dict[Literal["type"], str]),
    ] = key(
        None,
        "exclude_node: do not place the trial on this node again. cancel_retries: its next failure ends it. "
        "Default: only note the match.",
    )


class WebhooksSection(Section):
    """Which webhooks hear of an experiment."""

    names: tuple[Annotated[str, Field(max_length=256)], ...] = key(
        (), "Webhooks to call, also those that are only called on request."
    )
    exclude: bool = key(False, "Call no others: not those that are for all experiments of the owner or of all people.")


def _label_names(given: Any) -> Any:
    """Determined's labels have no values."""
    if isinstance(given, list | tuple) and all(isinstance(each, str | int | float) for each in given):
        return {str(each): "" for each in given}
    return given


Labels = Annotated[
    dict[str, Text], BeforeValidator(_label_names, json_schema_input_type=dict[str, str] | list[str | int | float])
]


def _check_line(pattern: str) -> str:
    read_metric_line(pattern)
    return pattern


MetricLine = Annotated[Text, AfterValidator(checked(_check_line))]
