"""`Trainer`: fits a trial."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

from everstep import env
from everstep.checkpoint import index
from everstep.checkpoint.checkpointer import Checkpointer
from everstep.core import job_checkpoints
from everstep.data.loader import DataLoader
from everstep.engine.arguments import check_kind
from everstep.errors import UsageError
from everstep.native import ElasticTrainer
from everstep.pytorch.callbacks import Callbacks
from everstep.pytorch.checkpoints import TrialCheckpoints, check_format, load_same, load_weights, restore
from everstep.pytorch.context import PyTorchTrialContext
from everstep.pytorch.fit_loop import FitLoop
from everstep.pytorch.fit_plan import FitPlan, make_plan
from everstep.pytorch.profiling import Profiler, ProfilerSettings, sampling
from everstep.pytorch.reporting import Reporter
from everstep.pytorch.run_folder import RunPaths, choose_paths
from everstep.pytorch.tensorboard import FOLDER as TENSORBOARD
from everstep.pytorch.train_units import Batch, TrainUnit
from everstep.pytorch.trial import PyTorchTrial, check_trial
from everstep.pytorch.trial_search import TrialSearch, models_digest
from everstep.pytorch.validation import Validation
from everstep.record import trial as trials
from everstep.record.checkpoint_reports import CheckpointReports, open_reports
from everstep.record.sender import open_sender
from everstep.record.trial import TrialFacts, current_trial, open_calls

log = logging.getLogger("everstep")


class Trainer:
    """Trains one trial in one context. Call `fit` again to train longer."""

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        check_trial(trial)
        hint = "use the context of pytorch.init()"
        check_kind("the Trainer's context", context, PyTorchTrialContext, hint=hint, code="not-a-context")
        self._trial, self._context = trial, context
        self._loop: FitLoop | None = None
        self._profiling = ProfilerSettings()
        self._facts: TrialFacts | None = None  # of the trial of a search, if this is one
        self._reports: CheckpointReports | None = None

    def configure_profiler(
        self,
        sync_timings: bool = True,
        enabled: bool = False,
        begin_on_batch: int = 0,
        end_after_batch: int | None = None,
    ) -> None:
        """Trace the batches from begin_on_batch to end_after_batch with torch.profiler, for TensorBoard."""
        self._profiling = ProfilerSettings(
            is_enabled=enabled,
            sync_timings=sync_timings,
            begin_on_batch=begin_on_batch,
            end_after_batch=end_after_batch,
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
        """Train until `max_length`; then validate and save, whatever the periods.

        Resumes from the newest checkpoint of this run; `latest_checkpoint` names another. `checkpoint_policy`: after a
        validation, save "all", the "best" by the searcher's metric (all, if it names none), or "none". `test_mode`:
        one training batch, one validation batch, one checkpoint.

        In a trial of an experiment, the search decides how long to train; `max_length` counts only if the search gives
        no length. At each length of the search, all workers validate and save; then they continue in this call, or
        return from it."""
        context = self._context
        self._facts = None if test_mode else current_trial()
        plan = make_plan(
            context.get_experiment_config(),
            length=max_length,
            checkpoint=checkpoint_period,
            validation=validation_period,
            reporting=reporting_period,
            policy=checkpoint_policy,
            is_test=test_mode,
            is_trial=self._facts is not None,
        )
        if plan.policy == "best" and plan.metric is None:
            log.info('checkpoint_policy="best" saves after every validation, since searcher.metric is not set')
        if self._loop is not None and _warn_if_finished(plan, self._loop):
            return
        paths = choose_paths(context, plan, self._facts)
        self._checkpoints = TrialCheckpoints(paths, plan, context, self._saved)
        self._reports = open_reports()
        try:
            self._fit(plan, paths, latest_checkpoint, step_zero_validation, profiling_enabled)
        finally:
            self._checkpoints.close()
            paths.close()
            if self._reports is not None:
                self._reports.close()

    def _fit(
        self, plan: FitPlan, paths: RunPaths, latest_checkpoint: str | None, validates_first: bool, is_profiled: bool
    ) -> None:
        context, uuid = self._context, None
        if self._loop is None:
            state, uuid = self._find(plan, latest_checkpoint)
            self._loop = self._make_loop(state, uuid)
        loop = self._loop
        context.wants_stop = loop.progress.is_stopping = False
        if self._facts is None and _warn_if_finished(plan, loop):
            self._mark(paths, plan, loop)
            return
        reporter = self._reporter = self._make_reporter(plan, paths, loop)
        context.writer = reporter.get_writer
        with contextlib.ExitStack() as stack:
            stack.callback(reporter.close)
            profiler = Profiler(context.profiling or self._profiling, paths.folder / TENSORBOARD)
            stack.callback(profiler.close)
            if is_profiled:
                stack.enter_context(sampling(reporter.system))
            search = self._open_search(plan, loop, stack)
            stack.enter_context(self._ending(loop))
            if uuid is not None and context.is_chief and uuid == self._checkpoints.uuid(loop.progress.now.batches):
                self._tell(uuid, loop.progress.now.batches)  # again: the worker that saved it may have died first
            reporter.began(loop.progress.now, uuid)
            profiler.step(loop.progress.now.batches)
            with context.engine.regrouping.sharing():
                reason = loop.run(
                    plan, reporter, self._checkpoints, profiler, validates_first=validates_first, search=search
                )
                if search is None or not search.is_parked:
                    self._mark(paths, plan, loop)
                context.engine.regrouping.conclude()  # all workers hold the last step before any leaves
            if search is None or not search.is_parked:
                self._mark(paths, plan, loop)  # the worker that did it may be lost, and another is the chief
            progress = loop.progress
            best_uuid = self._checkpoints.uuid(progress.best_at)
            best = None if progress.best is None else (best_uuid, progress.best_at, progress.best)
            reporter.ended(progress.now, reason, best)

    def _open_search(self, plan: FitPlan, loop: FitLoop, stack: contextlib.ExitStack) -> TrialSearch | None:
        calls = open_calls() if self._facts is not None else None
        if self._facts is None or calls is None:
            return None
        trials.take_over()
        stack.callback(calls.close)
        engine, bound = self._context.engine, plan.length
        return TrialSearch(self._facts, calls, engine, loop.progress, loop.gather, self._await_known, bound=bound)

    def _await_known(self) -> None:
        """Until the coordinator knows of all checkpoints so far."""
        if self._reports is not None and not self._reports.wait(env.coordinator_deadline_s()):
            log.warning("the coordinator does not know of the last checkpoint")

    def _mark(self, paths: RunPaths, plan: FitPlan, loop: FitLoop) -> None:
        """The run is finished: recorded before any worker asks for the folder of the next one."""
        if self._context.is_chief and not loop.progress.is_cut:  # otherwise the next fit has something left to do
            paths.finished(loop.progress.now, plan.length)

    @contextlib.contextmanager
    def _ending(self, loop: FitLoop) -> Iterator[None]:
        """Call the callbacks at the end; after an exception, also before the state in memory is saved."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            try:
                loop.callbacks.call_all("on_exception", error)
            except Exception as second:  # must not hide the first one, nor prevent the save
                log.error("on_exception failed: %s: %s", type(second).__name__, second, exc_info=second)
            loop.save_after(error)
            self._reporter.failed(error)
            raise
        finally:
            loop.callbacks.call_all("on_trial_shutdown")

    def _find(self, plan: FitPlan, latest_checkpoint: str | None) -> tuple[dict[str, Any] | None, str | None]:
        """The state to resume from, and its uuid. A trial of a search continues from its own, whatever the script says:
        it may have been parked since."""
        if latest_checkpoint is not None and self._facts is None:
            return self._load_named(latest_checkpoint)
        found = None if plan.is_test else self._checkpoints.load()
        if found is not None:
            check_format(found, f"the newest checkpoint in {self._checkpoints.uri}")
            self._checkpoints.check_hparams()
            return found, self._checkpoints.uuid(found["progress"]["now"]["batches"])
        if (facts := self._facts) is not None and facts.resume_from and not plan.is_test:
            state = load_same(facts.resume_from, facts.resume_from_uri, facts.resume_from_step)
            if state is not None:
                return state, facts.resume_from
        is_warm = self._facts is not None and latest_checkpoint == self._facts.warm_start
        if latest_checkpoint is not None and not is_warm:
            return self._load_named(latest_checkpoint)
        return None, None

    def _load_named(self, latest_checkpoint: str) -> tuple[dict[str, Any], str]:
        uri, step = job_checkpoints.find(latest_checkpoint)
        with Checkpointer(uri) as checkpointer:
            state: dict[str, Any] = checkpointer.load(step)
        check_format(state, f"checkpoint {latest_checkpoint}")
        return state, latest_checkpoint

    def _make_loop(self, state: dict[str, Any] | None, uuid: str | None) -> FitLoop:
        trial, context = self._trial, self._context
        if not context.models or not context.optimizers:
            missing = "wrap_optimizer" if context.models else "wrap_model"
            raise UsageError(f"context.{missing} was never called", hint="call it before fit()", code="nothing-wrapped")
        if state is not None:
            context.micro_batches = state["loop"]["micro_batches"]  # the global batch stays the same
        callbacks = Callbacks(trial.build_callbacks())
        callbacks.call("on_trial_startup", 0 if state is None else state["progress"]["now"]["batches"], uuid)
        loader = DataLoader.adopt(trial.build_training_data_loader(), context.seed)
        validation = Validation(
            trial, trial.build_validation_data_loader(), context.reducers, context.prepare, context.seed
        )
        trainer = ElasticTrainer(
            context.models[0],
            loader,
            micro_batches=context.micro_batches,
            reduce=context.reduce,
            backend=context.backend,
            seed=context.seed,
            threads=context.threads,
            engine=context.engine,
        )
        context.attach(trainer)
        loop = FitLoop(trial, context, trainer, loader, validation, callbacks)
        if state is not None:
            callbacks.call("on_checkpoint_load_start", state)
            restore(state, context, f"checkpoint {uuid}")
            trainer.load_state_dict(state["loop"] | {"data": state["data"]})
            callbacks.load_state_dict(state["callbacks"])
            loop.progress.resume(state["progress"])
            loop.metrics.load_state_dict(state["metrics"])
            if self._facts is not None:
                self._checkpoints.note_digest(loop.progress.now.batches, models_digest(context.models))
        elif self._facts is not None and self._facts.warm_start:
            load_weights(self._facts.warm_start, self._facts.warm_start_uri, self._facts.warm_start_step, context)
        return loop

    def _make_reporter(self, plan: FitPlan, paths: RunPaths, loop: FitLoop) -> Reporter:
        order = loop.loader.position.order
        assert order is not None
        return Reporter(
            folder=paths.folder,
            is_chief=lambda: self._context.is_chief,
            length=plan.length,
            length_batches=plan.length_in_batches(per_epoch=order.num_batches, global_batch=order.global_batch),
            has_tensorboard=self._context.has_tensorboard,
            metric=plan.metric,
            job_metrics=open_sender(),
        )

    def _saved(self, uuid: str, step: int) -> None:
        """A checkpoint has become durable."""
        assert self._loop is not None
        callbacks = self._loop.callbacks
        if self._context.is_chief:
            index.record(uuid, self._checkpoints.uri, step)  # findable by its uuid
            self._tell(uuid, step)
            callbacks.call("on_checkpoint_write_end", self._checkpoints.uri)
        callbacks.call("on_checkpoint_upload_end", uuid)
        self._reporter.saved(uuid, step, self._checkpoints.uri)

    def _tell(self, uuid: str, step: int) -> None:
        """The coordinator, in the background."""
        if self._reports is not None:
            self._reports(partial(self._checkpoints.report, uuid, step))


def _warn_if_finished(plan: FitPlan, loop: FitLoop) -> bool:
    """Whether there is nothing left to train."""
    is_finished = plan.length.is_reached(loop.progress.now) and not loop.progress.is_cut
    if is_finished:
        log.warning("nothing to train: already reached %s, at batch %d", plan.length, loop.progress.now.batches)
    return is_finished
