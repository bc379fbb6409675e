"""The loop of a trial: micro-batches, batches, and what is due between them.

All workers run it. The progress decides what is due after a batch. It is the same on all of them, so all
report, validate and save at the same step. A worker that was overtaken drops what it was doing, and continues with the
others."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from everstep.data.loader import DataLoader
from everstep.engine.pulse import PulseDecision
from everstep.errors import UsageError
from everstep.native import ElasticTrainer
from everstep.pytorch.callbacks import Callbacks
from everstep.pytorch.checkpoints import FORMAT, TrialCheckpoints
from everstep.pytorch.context import PyTorchTrialContext, TrainingPosition
from everstep.pytorch.fit_plan import UNBOUNDED, DueActions, FitPlan, decide_due
from everstep.pytorch.metrics import TrainingMetrics
from everstep.pytorch.profiling import Profiler
from everstep.pytorch.progress import BatchProgress, TrialProgress
from everstep.pytorch.reporting import Reporter
from everstep.pytorch.train_units import Seconds
from everstep.pytorch.trial import PyTorchTrial
from everstep.pytorch.trial_search import TrialSearch, models_digest
from everstep.pytorch.validation import Overtaken, Validation

log = logging.getLogger("everstep")

MOST_TRIES = 5  # to write the last checkpoint, while workers come and go


class FitLoop:
    """One trial, from its first fit to its last."""

    def __init__(
        self,
        trial: PyTorchTrial,
        context: PyTorchTrialContext,
        trainer: ElasticTrainer,
        loader: DataLoader,
        validation: Validation,
        callbacks: Callbacks,
    ) -> None:
        self.trial, self.context, self.trainer, self.loader = trial, context, trainer, loader
        self.validation, self.callbacks = validation, callbacks
        self.progress, self.metrics = TrialProgress(), TrainingMetrics(context.reducers)
        self._engine = trainer.engine
        self._has_batch_hooks = callbacks.has_batch_hooks
        self._at: TrainingPosition | None = None  # the batch in progress
        self._first = 0
        self._seconds = 0.0  # of training, by this worker's clock
        self._since: float | None = None  # while the clock runs
        self._last_metrics: dict[str, float] = {}  # of the last validation
        self._is_timed = False
        self._num_fits = 0
        trainer.register("progress", self.progress)
        trainer.register("metrics", self.metrics)
        trainer.register("callbacks", callbacks)
        trainer.hand_over(self._note, self._committed)
        context.now = self._now

    # --- a fit --------------------------------------------------------------------------------------------

    def run(
        self,
        plan: FitPlan,
        reporter: Reporter,
        checkpoints: TrialCheckpoints,
        profiler: Profiler,
        *,
        validates_first: bool,
        search: TrialSearch | None = None,
    ) -> str:
        """Until the plan's end, or the search's; returns why it ended."""
        self._plan, self._reporter, self._checkpoints, self._profiler = plan, reporter, checkpoints, profiler
        self._search, self._num_fits = search, self._num_fits + 1
        self._first = self.progress.now.batches
        self._is_timed = any(
            isinstance(u, Seconds) for u in (plan.length, plan.reporting, plan.validation, plan.checkpoint)
        )
        is_rehearsal = self._engine.next_micro_batch().is_rehearsal  # otherwise all workers have joined
        for model in self.context.models:
            model.train()
        self.callbacks.call("on_training_start")
        if is_rehearsal:
            self._rehearse()
        reason = "" if self._engine.regrouping.came_late else self._begin(validates_first=validates_first)
        while not reason:
            if self._is_over:  # it was overtaken meanwhile
                reason = "the others have reached the end"
                break
            reason = self._epoch_through()
        self._stop_clock()
        return reason

    def _begin(self, *, validates_first: bool) -> str:
        """All workers begin together: before the first batch."""
        try:
            if self._search is not None and (reason := self._search.begin(self._num_fits)):
                return reason
            if validates_first and self.progress.now.batches == 0:
                self._validate()
                if self._search is not None:
                    self._search.validated(is_halt=False, is_target=False, is_end=False)
        except Overtaken:
            return ""
        self._show_length()
        return self._make_up() if self.progress.is_cut else ""

    @property
    def _is_over(self) -> bool:
        progress = self.progress
        return self._plan_now().length.is_reached(progress.now) or progress.is_stopping or progress.is_over

    def _plan_now(self) -> FitPlan:
        """With the search's target, which is part of the state, in place of the script's own length."""
        target = None if self._search is None else self._search.target
        return self._plan if target is None else replace(self._plan, target=target, length=UNBOUNDED)

    def _show_length(self) -> None:
        if self._search is not None and (target := self._search.target) is not None:
            order = self.loader.position.order
            assert order is not None
            plan = self._plan_now()
            batches = plan.length_in_batches(per_epoch=order.num_batches, global_batch=order.global_batch)
            self._reporter.train_to(target, batches)

    def _rehearse(self) -> None:
        """Run a newcomer's first train_batch before it has the others' state, and throw the result away."""
        epoch, wants_stop = self.loader.position.epoch, self.context.wants_stop
        self.loader.set_epoch(epoch)
        for batch in self.loader:
            self._at = self._next()
            self._train(batch, epoch)
            break
        self._at, self.context.wants_stop = None, wants_stop
        self._engine.next_micro_batch()  # all workers have joined

    def _make_up(self) -> str:
        """Do what was due after the last batch and was not done when it was saved."""
        self.progress.is_cut, self.progress.saved_at = False, -1
        return self._after_batch(self.progress.before.epochs)

    def _epoch_through(self) -> str:
        """The rest of the epoch; returns the reason if the fit ends in it."""
        epoch = self.loader.position.epoch
        if self.progress.epoch_begun < epoch:  # otherwise the state has it, from a checkpoint or a peer
            self.progress.epoch_begun = epoch
            self.callbacks.call("on_training_epoch_start", epoch)
        self.loader.set_epoch(epoch)
        self._start_clock()
        for batch in self.loader:
            if reason := self._micro_batch(batch, epoch):
                return reason
        return ""

    def _micro_batch(self, batch: Any, epoch: int) -> str:
        step = self._engine.step
        if self._at is None or self._at.batch != step:
            self._at = self._next()
            if self._has_batch_hooks:
                self.progress.once("batch starts", lambda: self.callbacks.call("on_training_batch_start", epoch, step))
        self._train(batch, epoch)
        return self._after_batch(epoch) if self._engine.step > step else ""

    def _train(self, batch: Any, epoch: int) -> None:
        micro_batch, step = self._engine.offered, self._engine.step
        assert micro_batch is not None
        samples = self.loader.num_samples(micro_batch)
        batch = self.context.prepare(batch)
        self.context.reducers.reset()
        with self.trainer.step():
            with self.context.autocast() if self.context.is_amp else contextlib.nullcontext():
                result = self.trial.train_batch(batch, epoch, step)
            self.context.after_train_batch()
            if not micro_batch.is_ghost:
                self.metrics.record(step, micro_batch.index, samples, result)

    # --- the pulse ----------------------------------------------------------------------------------------

    def _note(self) -> bytes:
        """To all others, with each step: the metrics of the last one, a request to stop, the clock."""
        note = [self.metrics.known(), self.context.wants_stop, self._clock() if self._is_timed else 0.0]
        return json.dumps(note, separators=(",", ":")).encode()

    def _committed(self, decision: PulseDecision) -> None:
        notes = [json.loads(note) for note in decision.notes]
        before, position = self.progress.now, self.loader.position
        for known, wants_stop, _ in notes:
            self.metrics.hear(known)
            self.progress.is_stopping |= wants_stop
        records = position.records
        self.metrics.committed(self._engine.step - 1, records - before.records)
        self.progress.is_preempted = len(decision.leavers) == self._engine.world.size
        seconds = max((clock for *_, clock in notes), default=0.0)
        self.progress.advance(
            BatchProgress(
                batches=self._engine.step, epochs=position.epoch, records=records, seconds=max(before.seconds, seconds)
            )
        )

    # --- between two steps --------------------------------------------------------------------------------

    def _after_batch(self, epoch: int) -> str:
        """The reason, if the fit ends with this batch."""
        progress = self.progress
        before, now = progress.before, progress.now
        progress.once("schedulers", lambda: self._step_schedulers(before, now))
        if self._has_batch_hooks:
            mine = self.metrics.mine(now.batches - 1)
            progress.once("batch", lambda: self.callbacks.call("on_training_batch_end", epoch, now.batches - 1, mine))
        self._profiler.step(now.batches)
        self._reporter.batch(now, self.metrics.last, now.records - before.records)
        plan, is_preempted = self._plan_now(), progress.is_preempted
        due = decide_due(plan, before, now, is_stopping=progress.is_stopping, is_preempted=is_preempted)
        is_epoch_end = now.epochs > before.epochs
        if not due.is_anything and not is_epoch_end:
            return ""
        self._stop_clock()
        try:
            return self._between(due, epoch, is_epoch_end=is_epoch_end)
        except Overtaken:
            log.info("overtaken at batch %d: the others are at batch %d", now.batches, self._engine.step)
            return ""
        finally:
            self._start_clock()

    def _between(self, due: DueActions, epoch: int, *, is_epoch_end: bool) -> str:
        progress = self.progress
        if progress.is_preempted:  # time may be short
            progress.is_cut = True
            self._save()
            self._checkpoints.finish()
            return due.reason
        if is_epoch_end:
            progress.once("epoch", lambda: self.callbacks.call("on_training_epoch_end", epoch))
        if due.is_anything:
            for known in self.gather("metrics", self.metrics.known()):
                self.metrics.hear(known)
        if due.report:
            progress.once("report", self._report)
        if due.validate and progress.validated_at != progress.now.batches:
            self._validate()
        is_target = self._search is not None and due.validate and progress.is_at_target
        if (due.checkpoint or is_target) and progress.saved_at != progress.now.batches:
            self._save()
        if not due.is_end and any(self.gather("stop", self.context.wants_stop)):  # requested by a callback: at once
            progress.is_stopping = True
            return self._between(
                decide_due(self._plan_now(), progress.before, progress.now, is_stopping=True, is_preempted=False),
                epoch,
                is_epoch_end=False,
            )
        if due.is_end or is_target:
            self._finish_saving()
        if self._search is not None and due.validate:
            return self._ask_search(due, is_target=is_target)
        return due.reason

    def _ask_search(self, due: DueActions, *, is_target: bool) -> str:
        """After a validation; returns the reason if the fit ends with it."""
        assert self._search is not None
        is_halt = due.is_end or is_target
        with self._reporter.aside("waiting for the search"):
            reason = self._search.validated(is_halt=is_halt, is_target=is_target, is_end=due.is_end)
        if reason and not is_halt:
            self._save()
            self._finish_saving()
        self._show_length()
        return due.reason or reason

    def _step_schedulers(self, before: BatchProgress, now: BatchProgress) -> None:
        for each in self.context.lr_schedulers:
            if each.is_due(before, now, self.context.aggregation_frequency):
                each.scheduler.step()

    def _report(self) -> None:
        window = self.metrics.take()
        if window.batches:
            self.callbacks.call("on_training_workload_end", window.average, window.batches)
            self._reporter.trained(self.progress.now, window.average, window.batches)

    def _validate(self) -> None:
        progress, plan = self.progress, self._plan
        for hook in ("on_validation_start", "on_validation_epoch_start"):
            progress.once(hook, partial(self.callbacks.call, hook))
        rounds = itertools.count()
        amp = self.context.autocast() if self.context.is_amp else contextlib.nullcontext()
        with self._reporter.aside("validating"), amp:
            outcome = self.validation.run(
                self.context.models,
                lambda: self._engine.regrouping.agreeing,
                lambda value: self.gather(f"validation {next(rounds)}", value),
                max_batches=1 if plan.is_test else None,
            )
        self._last_metrics = _scalars(outcome.metrics)
        if plan.metric is not None and plan.metric not in self._last_metrics:
            numbers = ", ".join(sorted(self._last_metrics)) or "none"
            raise UsageError(
                f"the validation returned no number for the searcher's metric {plan.metric!r}; it returned: {numbers}",
                hint="searcher.metric names a metric that evaluate_batch or evaluate_full_dataset returns",
                code="searcher-metric-missing",
            )
        progress.once("validation", lambda: self._validated(outcome.metrics, outcome.outputs))
        is_best = progress.best_at == progress.now.batches
        if plan.policy == "all" or (plan.policy == "best" and (is_best or plan.metric is None)):
            self._save()

    def _validated(self, metrics: dict[str, Any], outputs: list[Any]) -> None:
        progress, plan = self.progress, self._plan
        progress.validated_at = progress.now.batches
        value = self._last_metrics.get(plan.metric or "")
        if value is not None and plan.is_better(value, progress.best):
            progress.best, progress.best_at = value, progress.now.batches
        if self._search is not None:
            before, now = progress.before, progress.now
            is_planned = not now.batches or (plan.validation is not None and plan.validation.is_due(before, now))
            progress.result = self._search.result(self._last_metrics, self.context.models, is_planned=is_planned)
        self.callbacks.call("on_validation_epoch_end", outputs)
        self.callbacks.call("on_validation_end", metrics)
        self._reporter.validated(progress.now, metrics, progress.best_at == progress.now.batches)

    def _save(self) -> None:
        progress = self.progress
        if progress.saved_at == progress.now.batches:
            return
        state = self._contents()
        progress.once("save starts", lambda: self.callbacks.call("on_checkpoint_save_start", state))
        progress.saved_at = progress.now.batches  # in the saved state, too
        state["progress"] = progress.state_dict()
        is_current = progress.validated_at == progress.now.batches
        if self._search is not None:
            known = progress.result if is_current else None
            digest = known["digest"] if known is not None else models_digest(self.context.models)
            self._checkpoints.note_digest(progress.now.batches, digest)
        self._checkpoints.save(progress.now.batches, state, self._last_metrics if is_current else {})

    def _finish_saving(self) -> None:
        """The last checkpoint must exist: if a worker is lost while it is written, it is written again."""
        for number in range(MOST_TRIES):
            world = self._engine.world
            is_saved = self._checkpoints.finish()
            found = self.gather(f"saved {number}", [is_saved, world.generation, world.rank])
            has_chief = any(rank == 0 for *_, rank in found)  # without it no checkpoint is complete
            is_void = any(generation != self._engine.world.generation for _, generation, _ in found)
            if (has_chief and all(is_saved for is_saved, *_ in found)) or not is_void:
                return
            self.progress.saved_at = -1
            self._save()

    def save_after(self, error: BaseException) -> None:
        """Save the state in memory before an exception ends the script: by the chief, if its state is whole. Raises
        nothing, so that the script ends with that exception."""
        try:
            self._checkpoints.finish()  # report the one being written, too
            batches = self.progress.now.batches
            if self._engine.world.rank or not self._engine.is_whole or batches in (self._first, self.progress.saved_at):
                return
            self.progress.is_cut = True
            uuid = self._checkpoints.save_alone(batches, self._contents())
            log.error("%s at batch %d: saved checkpoint %s first", type(error).__name__, batches, uuid)
        except Exception as failed:
            log.error("the state in memory at batch %d could not be saved: %s", self.progress.now.batches, failed)

    def _contents(self) -> dict[str, Any]:
        """Of a checkpoint. It holds the models and optimizers themselves: the Checkpointer copies them during the next
        batch."""
        context, kind = self.context, type(self.trial)
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        return {
            "format": FORMAT,
            "trial": {"class": f"{kind.__module__}:{kind.__qualname__}", "script": Path(main).name if main else ""},
            "experiment": context.get_experiment_config(),
            "models": list(context.models),
            "optimizers": list(context.optimizers),
            "schedulers": [each.scheduler for each in context.lr_schedulers],
            "scaler": context.scaler,
            "aggregated": [context.aggregated[id(optimizer)] for optimizer in context.optimizers],
            "loop": self.trainer.state_dict(),
            "data": self.loader.state_dict(),
            "progress": self.progress.state_dict(),
            "metrics": self.metrics.state_dict(),
            "callbacks": self.callbacks.state_dict(),
        }

    def gather(self, name: str, value: Any) -> list[Any]:
        found = self._engine.gather(value, name)
        if found is None:
            raise Overtaken
        return found

    # --- position and clock -------------------------------------------------------------------------------

    def _now(self) -> TrainingPosition:
        return self._at if self._at is not None and self._engine.is_in_micro_batch else self._next()

    def _next(self) -> TrainingPosition:
        """The batch that comes next, or begins."""
        position, order = self.loader.position, self.loader.position.order
        assert order is not None
        end = position.samples + order.samples_at(position.samples)
        return TrainingPosition(
            first=self._first,
            batch=self._engine.step,
            epoch=position.epoch,
            is_epoch_start=position.samples == 0,
            is_epoch_end=order.samples_at(end) == 0,
        )

    def _clock(self) -> float:
        return self._seconds + (time.monotonic() - self._since if self._since is not None else 0.0)

    def _start_clock(self) -> None:
        if self._since is None:
            self._seconds = max(self._seconds, self.progress.now.seconds)
            self._since = time.monotonic()

    def _stop_clock(self) -> None:
        self._seconds, self._since = self._clock(), None


def _scalars(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
