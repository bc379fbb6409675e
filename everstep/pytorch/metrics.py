"""The metrics of training: of each micro-batch, put together to those of each batch, and of each reporting period.

What a worker's micro-batches said of a batch goes to all others with the pulse of the next one, so that nearly nothing
is lost with a worker: at most its part of the last batch before its death. Then that batch's mean is over fewer
samples."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from everstep.errors import UsageError
from everstep.pytorch.plain_data import Number, listed, mean, number
from everstep.pytorch.reducers import Reducers

log = logging.getLogger("everstep")


class LoggedValues(NamedTuple):
    """What one micro-batch said."""

    samples: int
    metrics: dict[str, Any]
    slots: list[Any]  # of the user's reducers, packed

    def plain(self) -> LoggedValues:
        """As JSON can hold it: numbers and lists in place of tensors."""
        return self._replace(metrics={name: listed(number(name, value)) for name, value in self.metrics.items()})


class ReportingPeriod(NamedTuple):
    """A reporting period."""

    average: dict[str, Any]
    batches: list[dict[str, Number]]
    samples: int


class TrainingMetrics:
    """Part of the state that newcomers receive and that checkpoints hold."""

    def __init__(self, reducers: Reducers) -> None:
        self._reducers = reducers
        self._open: dict[
            int, dict[int, LoggedValues]
        ] = {}  # by step and micro-batch, of steps whose micro-batches are not all known here
        self._samples: dict[int, int] = {}  # by open step: how many it has
        self._batches: list[tuple[int, dict[str, Any]]] = []  # samples and means of the period's batches
        self._slots: list[list[Any]] = []
        self.last: dict[str, Any] = {}  # of the last batch that is wholly known

    def record(self, step: int, micro_batch: int, samples: int, result: Any) -> None:
        """What train_batch returned for a micro-batch of this worker's."""
        self._open.setdefault(step, {})[micro_batch] = LoggedValues(
            samples, detached(result), self._reducers.slot(is_training=True)
        )

    def committed(self, step: int, samples: int) -> None:
        """This many samples are in the step. What is not known of earlier steps by now will not come any more."""
        self._samples[step] = samples
        for earlier in sorted(each for each in self._open if each < step):
            self._close(earlier)

    def known(self) -> list[Any]:
        """Of the last committed step, what is known here; for `hear` at the others."""
        last = max(self._samples, default=-1)
        if last in self._open:
            self._open[last] = {micro_batch: entry.plain() for micro_batch, entry in self._open[last].items()}
        return [last, {str(micro_batch): list(entry) for micro_batch, entry in self._open.get(last, {}).items()}]

    def hear(self, said: list[Any]) -> None:
        step, micro_batches = said
        if step in self._samples:
            entries = {int(micro_batch): LoggedValues(*entry) for micro_batch, entry in micro_batches.items()}
            self._open[step] = entries | self._open.get(step, {})

    def mine(self, step: int) -> dict[str, Number]:
        """The mean over the micro-batches that are known here."""
        return _mean(self._open.get(step, {}))

    def take(self) -> ReportingPeriod:
        """All since the last time; what all workers know of the last batch must have been heard."""
        for step in sorted(self._samples):
            self._close(step)
        batches, slots = self._batches, self._slots
        self._batches, self._slots = [], []
        names = {name: None for _, metrics in batches for name in metrics}
        average: dict[str, Any] = {
            name: mean((samples, metrics[name]) for samples, metrics in batches if name in metrics) for name in names
        }
        average |= self._reducers.combine(slots, is_training=True) if slots else {}
        plain = [{name: number(name, value) for name, value in metrics.items()} for _, metrics in batches]
        return ReportingPeriod(average, plain, sum(samples for samples, _ in batches))

    def _close(self, step: int) -> None:
        entries, expected = self._open.pop(step, {}), self._samples.pop(step, 0)
        samples = sum(entry.samples for entry in entries.values())
        if samples < expected:
            log.warning(
                "batch %d: metrics of %d of its %d samples were lost with a worker", step, expected - samples, expected
            )
        if entries:
            self.last = {name: listed(value) for name, value in _mean(entries).items()}
            self._batches.append((samples, self.last))
            self._slots += [entries[micro_batch].slots for micro_batch in sorted(entries) if entries[micro_batch].slots]

    def state_dict(self) -> dict[str, Any]:
        return {
            "open": [
                [step, {str(micro_batch): list(entry.plain()) for micro_batch, entry in micro_batches.items()}]
                for step, micro_batches in self._open.items()
            ],
            "samples": [list(each) for each in self._samples.items()],
            "batches": [list(each) for each in self._batches],
            "slots": list(self._slots),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._open = {
            step: {int(micro_batch): LoggedValues(*entry) for micro_batch, entry in micro_batches.items()}
            for step, micro_batches in state["open"]
        }
        self._samples = dict(state["samples"])
        self._batches = [(samples, metrics) for samples, metrics in state["batches"]]
        self._slots = list(state["slots"])


def _mean(entries: Mapping[int, LoggedValues]) -> dict[str, Number]:
    """In the order of the micro-batches."""
    ordered = [entries[micro_batch] for micro_batch in sorted(entries)]
    names = {name: None for entry in ordered for name in entry.metrics}
    return {
        name: mean((entry.samples, number(name, entry.metrics[name])) for entry in ordered if name in entry.metrics)
        for name in names
    }


def detached(result: Any) -> dict[str, Any]:
    """What train_batch returned, without the graph that its tensors hang on; turned into numbers only when needed, so
    copied: the script may go on to change a tensor of its own."""
    if isinstance(result, torch.Tensor):
        result = {"loss": result}
    if not isinstance(result, Mapping):
        raise UsageError(
            f"train_batch returned a {type(result).__name__}", hint='return the loss, or a dict: {"loss": loss}'
        )
    return {
        str(name): value.detach().clone() if isinstance(value, torch.Tensor) else value
        for name, value in result.items()
    }
