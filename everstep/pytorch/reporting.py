"""Reports of a fit: on the display, in metrics.jsonl and TensorBoard's files, and to the coordinator.

Every worker has a reporter and passes everything to it; the current chief writes. The chief is looked up each time: it
may die, and another continues the same files. Nothing here can end the training: a failure to write is logged once,
and the lost lines are counted and logged at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from everstep.pytorch.display import (
    FitDisplay,
    FitSpeed,
    FitStatus,
    clock,
    number,
    shown_loss,
    shown_metrics,
)
from everstep.pytorch.metric_records import FILE, RecordFile, make_record, report_of
from everstep.pytorch.progress import BatchProgress
from everstep.pytorch.tensorboard import FOLDER, ChiefWriter, TensorBoard
from everstep.pytorch.train_units import TrainUnit
from everstep.record import standing
from everstep.wire import MetricReport

log = logging.getLogger(__name__)

_LOOK_S = 0.25  # how often a worker checks whether it has become the chief


class Reporter:
    """
    length_batches: batches of the whole fit, if known. metric: the one that checkpoints are compared by.
    job_metrics: called with each report for the coordinator; must not block. If it has a `close`, that is called with
    the reporter's."""

    def __init__(
        self,
        *,
        folder: Path,
        is_chief: Callable[[], bool],
        length: TrainUnit,
        length_batches: int | None,
        has_tensorboard: bool,
        metric: str | None,
        job_metrics: Callable[[MetricReport], None] | None,
    ) -> None:
        self._is_chief, self._length, self._length_batches = is_chief, length, length_batches
        self._metric, self._job_metrics = metric, job_metrics
        self._records = RecordFile(folder / FILE)
        self._num_lost = 0
        self._tensorboard = TensorBoard(folder / FOLDER, is_chief, is_enabled=has_tensorboard)
        self._display: FitDisplay | None = None
        self._pace, self._progress = FitSpeed(), BatchProgress()
        self._look_at = self._drawn_at = float("-inf")
        self._metrics: Mapping[str, Any] = {}
        self._validation = self._doing = ""
        self._best_step: int | None = None  # of the best validation
        self._where: dict[int, str] = {}  # checkpoints, by step
        self._is_closed = False

    def get_writer(self) -> ChiefWriter:
        """TensorBoard's SummaryWriter for the script, on any worker."""
        return ChiefWriter(self._tensorboard)

    # --- events of a fit ---

    def began(self, progress: BatchProgress, resumed_from: str | None) -> None:
        self._progress = progress
        self._tensorboard.began(progress.batches)
        self._write(make_record("begin", progress, resumed_from=resumed_from))
        if resumed_from is not None:
            self._say(f"resuming from batch {progress.batches} (checkpoint {resumed_from})")
        self._pace.skip_to(time.monotonic())

    def train_to(self, length: TrainUnit, length_batches: int | None) -> None:
        """Another target from now on."""
        self._length, self._length_batches = length, length_batches

    def batch(self, progress: BatchProgress, metrics: Mapping[str, Any] | None, num_samples: int) -> None:
        """After each batch. `num_samples`: of the global batch."""
        now = time.monotonic()
        self._pace.batch(now, num_samples)
        self._progress = progress
        if metrics is not None:
            self._metrics = metrics
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            self._draw(now)

    def trained(
        self,
        progress: BatchProgress,
        metrics: Mapping[str, Any],
        batch_metrics: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Averages since the last report, and optionally the metrics of each batch."""
        self._progress, self._metrics = progress, metrics
        more = {"batch_metrics": batch_metrics} if batch_metrics else {}
        self._write(make_record("training", progress, metrics, **more), metrics)
        self._tensorboard.scalars("training", metrics, progress.batches)
        self._draw(time.monotonic(), is_boundary=True)
        self._pace.skip_to(time.monotonic())

    def validated(self, progress: BatchProgress, metrics: Mapping[str, Any], is_best: bool) -> None:
        self._progress = progress
        self._write(make_record("validation", progress, metrics, is_best=is_best), metrics)
        self._tensorboard.scalars("validation", metrics, progress.batches)
        self._tensorboard.flush()
        if is_best:
            self._best_step = progress.batches
        better = ", the best so far" if is_best else ""
        self._validation = f"validation at batch {progress.batches}: {shown_metrics(metrics) or 'done'}{better}"
        self._say(self._validation)
        self._pace.skip_to(time.monotonic())

    def saved(self, uuid: str, step: int, where: str) -> None:
        """`where`: shown to the user. May be called while later batches are trained."""
        known = self._progress if self._progress.batches == step else BatchProgress(batches=step)
        record = make_record("checkpoint", known, uuid=uuid, where=where)
        if known is not self._progress:
            record |= {"epochs": None, "records": None}
        self._write(record)
        self._tensorboard.flush()
        self._where[step] = f"{uuid} of batch {step}: {where}"
        self._say(f"checkpoint {self._where[step]}")

    def system(self, metrics: Mapping[str, Any]) -> None:
        """Samples of the machine; from any thread."""
        if self._is_chief() and not self._is_closed:
            self._append(make_record("system", self._progress, metrics))

    @contextmanager
    def aside(self, doing: str) -> Iterator[None]:
        """While validating: the display shows it, and the time does not count as training."""
        self._doing = doing
        self._draw(time.monotonic())
        try:
            yield
        finally:
            self._doing = ""
            self._pace.skip_to(time.monotonic())

    def ended(self, progress: BatchProgress, reason: str, best: tuple[str, int, float] | None) -> None:
        self._progress = progress
        more = {"best": {"uuid": best[0], "batches": best[1], "value": best[2]}} if best else {}
        self._write(make_record("end", progress, reason=reason, **more))
        records = f"{progress.records:,} records" if progress.records else ""
        seconds = f"{clock(progress.seconds)} of training" if progress.seconds else ""
        loss = shown_loss(self._metrics)
        reached = [f"{progress.batches} batches", f"{progress.epochs} epochs", records, seconds, loss]
        self._say(f"{reason}: {', '.join(each for each in reached if each)}")
        if best:
            uuid, step, value = best
            known = self._where.get(step, f"{uuid} of batch {step}")
            self._say(f"best checkpoint ({self._metric or 'metric'} {number(value)}): {known}")

    def failed(self, error: BaseException) -> None:
        self._write(make_record("failure", self._progress, error=f"{type(error).__name__}: {error}"[:2000]))
        self._say(f"failed after batch {self._progress.batches}: {type(error).__name__}")

    def close(self) -> None:
        """Write and send everything, as far as possible, and restore the terminal. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._display is not None:
            self._display.close()
        self._tensorboard.close()
        self._records.close()
        if self._num_lost:
            log.warning("%d lines of metrics were not written", self._num_lost)
        close = getattr(self._job_metrics, "close", None)
        if close is not None:
            close()

    # --- where reports go ---

    def _write(self, record: dict[str, Any], metrics: Mapping[str, Any] | None = None) -> None:
        if not self._is_chief():
            return
        self._append(record)
        if self._job_metrics is not None:
            self._job_metrics(report_of(record, metrics, standing.current().generation))

    def _append(self, record: dict[str, Any]) -> None:
        try:
            self._records.append(record)
        except OSError as error:
            if self._num_lost == 0:
                log.warning("metrics cannot be written: %s", error)
            self._num_lost += 1

    def _say(self, line: str) -> None:
        if (display := self._shown()) is not None:
            display.say(line)

    def _draw(self, now: float, *, is_boundary: bool = False) -> None:
        display = self._shown()
        if display is None:
            return
        if not self._doing and not display.is_due(now - self._drawn_at, is_boundary=is_boundary):
            return
        if not self._doing:
            self._drawn_at = now
        best = self._where.get(self._best_step) if self._best_step is not None else None
        display.draw(
            FitStatus(
                progress=self._progress,
                length=self._length,
                length_batches=self._length_batches,
                loss=shown_loss(self._metrics),
                samples_per_s=self._pace.samples_per_s,
                eta_s=self._pace.remaining_s(self._length, self._length_batches, self._progress),
                validation=self._validation,
                best=f"best checkpoint: {best}" if best else "",
                doing=self._doing,
            )
        )

    def _shown(self) -> FitDisplay | None:
        if self._is_closed or not self._is_chief():
            return None
        if self._display is None:
            self._display = FitDisplay()
        return self._display
