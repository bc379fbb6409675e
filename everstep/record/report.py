"""`everstep.report`: metrics of any script, kept with its job.

    everstep.report({"loss": loss, "accuracy": accuracy}, step=step)

Rank 0 reports, whichever worker that is at the time; on all others the call does nothing. A thread sends what is
reported, so the call does not wait. Outside a job, metrics are not kept: this is logged once, and nothing else
happens, so the same script runs anywhere. What could not be delivered is logged when the script ends.

In a trial of an experiment, a report that has the searcher's metric waits for the search's decision, and returns it:

    if not everstep.report({"val_loss": loss}, step=step):
        break"""

from __future__ import annotations

import atexit
import logging
import operator
import time
from collections.abc import Mapping
from typing import Any

from everstep.errors import UsageError
from everstep.record import report_answer
from everstep.record.numbers import split
from everstep.record.sender import MetricSender, open_sender
from everstep.record.standing import current
from everstep.wire import MetricReport
from everstep.wire.bounds import MAX_INT, MAX_NAME
from everstep.wire.metrics import MOST_VALUES

log = logging.getLogger("everstep")

_sender: MetricSender | None = None
_is_said = False


def report(metrics: Mapping[str, Any], *, step: int) -> bool:
    """Keep these metrics of this step with the job. Numbers, also tensors and arrays of one, become series that
    `everstep metrics` shows; anything else is kept as JSON. A later report of the same step replaces this one.

    Returns whether to continue: outside a trial always True. In a trial, the searcher's metric is a result, at the
    length that the report has under the searcher's unit, as in {"loss": loss, "epochs": 3}; for batches, `step` will
    do. Call it on all workers, between two steps. False: the trial is over, so end the script."""
    step = _checked(metrics, step)
    standing = current()
    if standing.is_reporter:
        _send(metrics, step, standing.generation)
    return report_answer.decide(metrics, step)


def _send(metrics: Mapping[str, Any], step: int, generation: int) -> None:
    global _sender, _is_said
    if _sender is None:
        _sender = open_sender()
        if _sender is None:
            if not _is_said:
                log.info("everstep.report: not in a job, so no metrics are kept; `everstep run SCRIPT` starts one")
                _is_said = True
            return
        atexit.register(close)
    values, details = split(metrics)
    _sender(MetricReport(step=step, time=time.time(), generation=generation, values=values, details=details))


def close() -> None:
    """Send the rest, and say what was lost; the next report opens a new connection."""
    global _sender
    sender, _sender = _sender, None
    if sender is not None:
        atexit.unregister(close)
        sender.close()


def _checked(metrics: Any, step: Any) -> int:
    hint = 'everstep.report({"loss": loss}, step=step)'
    if not isinstance(metrics, Mapping):
        problem = f"report() got {type(metrics).__name__}, not a dict of metrics"
        raise UsageError(problem, hint=hint, code="report-not-a-dict")
    for name in metrics:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or "\0" in name:
            problem = f"the name of a metric must be a string of 1 to {MAX_NAME} characters, not {str(name)[:40]!r}"
            raise UsageError(problem, hint=hint, code="metric-name-invalid")
    if len(metrics) > MOST_VALUES:
        problem = f"report() got {len(metrics)} metrics, more than {MOST_VALUES}"
        raise UsageError(problem, hint="report them in several calls", code="too-many-metrics")
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if not 0 <= number <= MAX_INT:
        raise UsageError(f"step={step!r} is not a number of steps", hint=hint, code="report-step-invalid")
    return number
