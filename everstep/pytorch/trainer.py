"""`Trainer`: fits a trial, wherever it runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from everstep.checkpoint import index
from everstep.checkpoint.checkpointer import Checkpointer
from everstep.data.loader import DataLoader
from everstep.errors import UsageError
from everstep.native import ElasticTrainer
from everstep.pytorch.callbacks import Callbacks
from everstep.pytorch.context import PyTorchTrialContext
from everstep.pytorch.due_actions import FitPlan, check_policy, configured_length, is_done, length_in_batches
from everstep.pytorch.fit import FitLoop
from everstep.pytorch.job_metrics import job_metrics
from everstep.pytorch.profiling import Profiler, configure_profiler
from everstep.pytorch.reporting import Reporter
from everstep.pytorch.run_paths import RunPaths, decide_place
from everstep.pytorch.saving import TrialCheckpoints, check_format, restore
from everstep.pytorch.system import SystemSampler
from everstep.pytorch.tensorboard import FOLDER as TENSORBOARD
from everstep.pytorch.trial import PyTorchTrial, check_trial
from everstep.pytorch.units import Batch, TrainUnit, check_length, check_period
from everstep.pytorch.validation import Validation

log = logging.getLogger("everstep")


class Trainer:
    """Of one trial in one context. `fit` may be called again, to go on for longer."""

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        check_trial(trial)
        if not isinstance(context, PyTorchTrialContext):
            raise UsageError(f"Trainer got a {type(context).__name__} as context", hint="use that of pytorch.init()")
        self._trial, self._context = trial, context
        self._loop: FitLoop | None = None
        self._profiling = configure_profiler()

    def configure_profiler(
        self,
        sync_timings: bool = True,
        enabled: bool = False,
        begin_on_batch: int = 0,
        end_after_batch: int | None = None,
    ) -> None:
        """Trace the batches from begin_on_batch to end_after_batch with torch.profiler, for TensorBoard."""
        self._profiling = configure_profiler(
            sync_timings=sync_timings, enabled=enabled, begin_on_batch=begin_on_batch, end_after_batch=end_after_batch
        )

    def fit(
        self,
        checkpoint_period: TrainUnit | None = None,
        validation_period: TrainUnit | None = None,
        max_length: TrainUnit | None = None,
        reporting_period: TrainUnit = Batch(100),  # noqa: B008
        checkpoint_policy: str = "best",
        latest_checkpoint: str | None = None,
        step_zero_validation: bool = False,
        test_mode: bool = False,
        profiling_enabled: bool = False,
    ) -> None:
        """Train until `max_length`; then validate and save, whatever the periods say.

        Goes on from the newest checkpoint of this run by itself; `latest_checkpoint` names another one. After a
        validation `checkpoint_policy` saves "all", the "best" by the searcher's metric (all, if none is known), or
        "none". `test_mode`: one training batch, one validation batch, one checkpoint."""
        context = self._context
        plan = self._plan(
            max_length, checkpoint_period, validation_period, reporting_period, checkpoint_policy, is_test=test_mode
        )
        if self._loop is not None and _has_nothing_left(plan, self._loop):
            self._warn_of_nothing(plan, self._loop)
            return
        place = decide_place(context, plan)
        self._checkpoints = TrialCheckpoints(
            place.checkpoints,
            hparams=context.get_hparams(),
            metric=plan.metric,
            smaller_is_better=plan.smaller_is_better,
            keep_latest=place.keep_latest,
            keep_best=place.keep_best,
            told=self._saved,
            is_void=lambda: context.engine.regrouping.is_closed,
            is_chief=lambda: context.is_chief,
        )
        try:
            self._fit(plan, place, latest_checkpoint, step_zero_validation, profiling_enabled)
        finally:
            self._checkpoints.close()
            place.close()

    def _plan(
        self, length: Any, checkpoint: Any, validation: Any, reporting: Any, policy: Any, *, is_test: bool
    ) -> FitPlan:
        exp_conf = self._context.get_experiment_config()
        searcher = exp_conf.get("searcher") or {}
        if length is None:
            length = configured_length(exp_conf)
        if length is None and not is_test:
            raise UsageError(
                "fit() without max_length", hint="give max_length=Epoch(1), or searcher.max_length in the job file"
            )
        metric = searcher.get("metric")
        checked = check_policy(policy)
        if checked == "best" and metric is None:
            log.info('checkpoint_policy="best" saves after every validation: no searcher.metric says which is better')
        reporting = check_period("reporting_period", reporting)
        if reporting is None:
            raise UsageError("reporting_period=None", hint="leave it out for Batch(100)")
        return FitPlan(
            length=Batch(1) if is_test else check_length(length),
            reporting=reporting,
            validation=check_period("validation_period", validation),
            checkpoint=check_period("checkpoint_period", checkpoint),
            policy=checked,
            metric=metric,
            smaller_is_better=bool(searcher.get("smaller_is_better", True)),
            is_test=is_test,
        )

    def _fit(
        self,
        plan: FitPlan,
        place: RunPaths,
        latest_checkpoint: str | None,
        validates_first: bool,
        is_profiled: bool,
    ) -> None:
        context, uuid = self._context, None
        if self._loop is None:
            state, uuid = self._find(plan, latest_checkpoint)
            self._loop = self._make_loop(state, uuid)
        loop = self._loop
        first = loop.tally.now.batches
        context.wants_stop = loop.tally.is_stopping = False
        if _has_nothing_left(plan, loop):
            self._warn_of_nothing(plan, loop)
            self._mark(place, plan, loop)
            return
        reporter = self._reporter = self._make_reporter(plan, place, loop)
        context.writer = reporter.get_writer
        with contextlib.ExitStack() as stack:
            stack.callback(reporter.close)
            profiler = Profiler(context.profiling or self._profiling, place.folder / TENSORBOARD)
            stack.callback(profiler.close)
            if is_profiled:
                stack.enter_context(SystemSampler(reporter.system))
            stack.enter_context(self._telling(loop))
            reporter.began(loop.tally.now, uuid)
            profiler.step(first)
            with context.engine.regrouping.sharing():
                reason = loop.run(
                    plan, reporter, self._checkpoints, profiler, first=first, validates_first=validates_first
                )
                self._mark(place, plan, loop)
                loop.conclude()
            self._mark(place, plan, loop)  # who did it may have been lost, and another is the chief
            tally = loop.tally
            best_uuid = self._checkpoints.uuid(tally.best_at)
            best = None if tally.best is None else (best_uuid, tally.best_at, tally.best)
            reporter.ended(tally.now, reason, best)

    def _mark(self, place: RunPaths, plan: FitPlan, loop: FitLoop) -> None:
        """The run has come to its end: before any worker goes on, and asks for the next one's folder."""
        if self._context.is_chief and not loop.tally.is_cut:  # else something is left for the next time
            place.finished(loop.tally.now, plan.length)

    def _warn_of_nothing(self, plan: FitPlan, loop: FitLoop) -> None:
        log.warning("nothing to train: %s is reached already, at batch %d", plan.length, loop.tally.now.batches)

    @contextlib.contextmanager
    def _telling(self, loop: FitLoop) -> Iterator[None]:
        """Callbacks hear of the end, and of an exception before what is in memory is saved."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            with _said("on_exception"):
                loop.callbacks.tell_all("on_exception", error)
            loop.save_after(error)
            self._reporter.failed(error)
            raise
        finally:
            loop.callbacks.tell_all("on_trial_shutdown")

    def _find(self, plan: FitPlan, latest_checkpoint: str | None) -> tuple[dict[str, Any] | None, str | None]:
        """The state to go on from, and its uuid."""
        if latest_checkpoint is not None:
            uri, step = index.find(latest_checkpoint)
            with Checkpointer(uri) as checkpointer:
                state: dict[str, Any] = checkpointer.load(step)
            check_format(state, f"checkpoint {latest_checkpoint}")
            return state, latest_checkpoint
        found = None if plan.is_test else self._checkpoints.load()
        if found is None:
            return None, None
        check_format(found, f"the newest checkpoint in {self._checkpoints.uri}")
        self._checkpoints.check_hparams()
        return found, self._checkpoints.uuid(found["tally"]["now"]["batches"])

    def _make_loop(self, state: dict[str, Any] | None, uuid: str | None) -> FitLoop:
        trial, context = self._trial, self._context
        if not context.models or not context.optimizers:
            missing = "wrap_optimizer" if context.models else "wrap_model"
            raise UsageError(f"nothing was given to context.{missing}", hint=f"context.{missing}(…) before fit()")
        if state is not None:
            context.micro_batches = state["loop"]["micro_batches"]  # a global batch stays what it was
        callbacks = Callbacks(trial.build_callbacks())
        callbacks.tell("on_trial_startup", 0 if state is None else state["tally"]["now"]["batches"], uuid)
        loader = DataLoader.adopt(trial.build_training_data_loader(), context.seed)
        validation = Validation(
            trial, trial.build_validation_data_loader(), context.reducers, context.prepare, context.seed
        )
        trainer = ElasticTrainer(
            context.models[0],
            loader,
            micro_batches=context.micro_batches,
            reduce=context.reduce,
            seed=context.seed,
            threads=context.threads,
            engine=context.engine,
        )
        context.attach(trainer)
        loop = FitLoop(trial, context, trainer, loader, validation, callbacks)
        if state is not None:
            callbacks.tell("on_checkpoint_load_start", state)
            restore(state, context, f"checkpoint {uuid}")
            trainer.load_state_dict(state["loop"] | {"data": state["data"]})
            callbacks.load_state_dict(state["callbacks"])
            loop.tally.resume(state["tally"])
            loop.metrics.load_state_dict(state["metrics"])
        return loop

    def _make_reporter(self, plan: FitPlan, place: RunPaths, loop: FitLoop) -> Reporter:
        order = loop.loader.position.order
        assert order is not None
        return Reporter(
            folder=place.folder,
            is_chief=lambda: self._context.is_chief,
            length=plan.length,
            length_batches=length_in_batches(plan.length, per_epoch=order.num_batches, global_batch=order.global_batch),
            has_tensorboard=self._context.has_tensorboard,
            metric=plan.metric,
            job_metrics=job_metrics(),
        )

    def _saved(self, uuid: str, step: int) -> None:
        """A checkpoint has become durable."""
        assert self._loop is not None
        callbacks = self._loop.callbacks
        if self._context.is_chief:
            self._checkpoints.record(step)
            callbacks.tell("on_checkpoint_write_end", self._checkpoints.uri)
        callbacks.tell("on_checkpoint_upload_end", uuid)
        self._reporter.saved(uuid, step, self._checkpoints.uri)


@contextlib.contextmanager
def _said(what: str) -> Iterator[None]:
    """A second exception, while the first one is dealt with: it does not hide that one, nor keep the rest undone."""
    try:
        yield
    except Exception as error:
        log.error("%s failed: %s: %s", what, type(error).__name__, error, exc_info=error)


def _has_nothing_left(plan: FitPlan, loop: FitLoop) -> bool:
    return is_done(plan.length, loop.tally.now) and not loop.tally.is_cut
