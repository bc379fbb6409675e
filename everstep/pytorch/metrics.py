"""Training metrics: of each micro-batch, combined into those of each batch and each reporting period.

A worker's metrics of a batch travel to all others with the pulse of the next one, so a lost worker takes at most its
part of the last batch with it. The mean of that batch is then over fewer samples."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from everstep.engine.arguments import check_kind
from everstep.pytorch.reducers import Number, Reducers, listed, mean, number

log = logging.getLogger("everstep")


class LoggedValues(NamedTuple):
    """The metrics of one micro-batch."""

    samples: int
    metrics: dict[str, Any]
    reduced: list[Any]  # results of the user's reducers, packed

    def plain(self) -> LoggedValues:
        """For JSON: numbers and lists instead of tensors."""
        return self._replace(metrics={name: listed(number(name, value)) for name, value in self.metrics.items()})


class ReportingPeriod(NamedTuple):
    average: dict[str, Any]
    batches: list[dict[str, Number]]
    samples: int


class TrainingMetrics:
    """Part of the state that newcomers receive and checkpoints hold."""

    def __init__(self, reducers: Reducers) -> None:
        self._reducers = reducers
        self._open: dict[int, dict[int, LoggedValues]] = {}  # by step and micro-batch, while some may be unknown here
        self._samples: dict[int, int] = {}  # of open steps
        self._batches: list[tuple[int, dict[str, Any]]] = []  # samples and means of the period's batches
        self._reduced: list[list[Any]] = []
        self.last: dict[str, Any] = {}  # of the last closed batch

    def record(self, step: int, micro_batch: int, samples: int, result: Any) -> None:
        """The result of train_batch for one of this worker's micro-batches."""
        self._open.setdefault(step, {})[micro_batch] = LoggedValues(
            samples, detached(result), self._reducers.reduce_part(is_training=True)
        )

    def committed(self, step: int, samples: int) -> None:
        """The step has this many samples. Metrics of earlier steps that are unknown by now will never arrive."""
        self._samples[step] = samples
        for earlier in sorted(each for each in self._open if each < step):
            self._close(earlier)

    def known(self) -> list[Any]:
        """The metrics of the last committed step that are known here; for `hear` on other workers."""
        last = max(self._samples, default=-1)
        if last in self._open:
            self._open[last] = {micro_batch: entry.plain() for micro_batch, entry in self._open[last].items()}
        return [last, {str(micro_batch): list(entry) for micro_batch, entry in self._open.get(last, {}).items()}]

    def hear(self, known: list[Any]) -> None:
        step, micro_batches = known
        if step in self._samples:
            self._open[step] = _entries(micro_batches) | self._open.get(step, {})

    def mine(self, step: int) -> dict[str, Number]:
        """The means over the micro-batches known here."""
        return _mean(self._open.get(step, {}))

    def take(self) -> ReportingPeriod:
        """Everything since the last call; `hear` must have been called with what all workers know of the last batch."""
        for step in sorted(self._samples):
            self._close(step)
        batches, reduced = self._batches, self._reduced
        self._batches, self._reduced = [], []
        names = {name: None for _, metrics in batches for name in metrics}
        average: dict[str, Any] = {
            name: mean((samples, metrics[name]) for samples, metrics in batches if name in metrics) for name in names
        }
        average |= self._reducers.combine(reduced, is_training=True) if reduced else {}
        plain = [{name: number(name, value) for name, value in metrics.items()} for _, metrics in batches]
        return ReportingPeriod(average, plain, sum(samples for samples, _ in batches))

    def _close(self, step: int) -> None:
        entries, expected = self._open.pop(step, {}), self._samples.pop(step, 0)
        samples = sum(entry.samples for entry in entries.values())
        if samples < expected:
            log.warning(
                "batch %d: the metrics of %d of %d samples were lost with a worker", step, expected - samples, expected
            )
        if entries:
            self.last = {name: listed(value) for name, value in _mean(entries).items()}
            self._batches.append((samples, self.last))
            self._reduced += [entry.reduced for _, entry in sorted(entries.items()) if entry.reduced]

    def state_dict(self) -> dict[str, Any]:
        return {
            "open": [
                [step, {str(micro_batch): list(entry.plain()) for micro_batch, entry in micro_batches.items()}]
                for step, micro_batches in self._open.items()
            ],
            "samples": [list(each) for each in self._samples.items()],
            "batches": [list(each) for each in self._batches],
            "reduced": list(self._reduced),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._open = {step: _entries(micro_batches) for step, micro_batches in state["open"]}
        self._samples = dict(state["samples"])
        self._batches = [(samples, metrics) for samples, metrics in state["batches"]]
        self._reduced = list(state["reduced"])


def _entries(micro_batches: Mapping[str, Any]) -> dict[int, LoggedValues]:
    return {int(micro_batch): LoggedValues(*entry) for micro_batch, entry in micro_batches.items()}


def _mean(entries: Mapping[int, LoggedValues]) -> dict[str, Number]:
    """In the order of the micro-batches."""
    ordered = [entries[micro_batch] for micro_batch in sorted(entries)]
    names = {name: None for entry in ordered for name in entry.metrics}
    return {
        name: mean((entry.samples, number(name, entry.metrics[name])) for entry in ordered if name in entry.metrics)
        for name in names
    }


def detached(result: Any) -> dict[str, Any]:
    """The result of train_batch, without the autograd graph. Values become numbers only when needed, so tensors are
    copied: the script may change its own."""
    if isinstance(result, torch.Tensor):
        result = {"loss": result}
    hint = 'return the loss, or a dict: {"loss": loss}'
    check_kind("train_batch returned", result, Mapping, hint=hint, code="train-batch-result-unknown")
    return {
        str(name): value.detach().clone() if isinstance(value, torch.Tensor) else value
        for name, value in result.items()
    }
