"""Door 2, the controller: wrap the function that trains on one batch, and it is run again when a peer is lost.

    service = everstep.RecordIndexService(batch_size=64, dataset_size=len(images), num_epochs=2, shuffle=True)
    controller = everstep.AllReduceController(service)
    controller.set_broadcast_model(model)
    controller.set_broadcast_optimizer(optimizer)
    train = controller.elastic_run(train_one_batch)
    with controller.scope():
        for data, target in loader:          # reads the records that the service leases
            loss = train(model, optimizer, data, target)

The optimizer steps on the mean over the records of all workers' batches. Each record is trained on exactly once per
epoch, regardless of which worker dies: each step carries the records it used, and they are reported once the next step
proves that all workers hold it. A worker that has no samples for now takes part with a batch of no weight, so that no
other waits for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from everstep.data.held_leases import RecordBatch, Usage, UsageNote
from everstep.data.record_index import RecordIndexService
from everstep.engine import process_engine
from everstep.engine.data_parallel import unwrap
from everstep.engine.data_source import DataSource
from everstep.engine.optimizer_gates import StepGate, explain
from everstep.engine.pulse import PulseDecision
from everstep.engine.settings import Settings
from everstep.errors import PeerLost, UsageError
from everstep.events import emit
from everstep.ranges import Ranges, merged
from everstep.wire import LeasePart

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(kw_only=True, slots=True, eq=False)
class _TrainCall:
    """One batch that the script has given, kept until its step is committed."""

    run: Callable[[], Any]
    batch: RecordBatch | None
    is_held: bool = False  # its gradients are in this worker's sum
    is_used: bool = False  # they are in a committed step already: it is run again for its result alone
    result: Any = None

    @property
    def weight(self) -> float:
        if self.is_used or self.batch is None:
            return 0.0 if self.is_used else 1.0
        return 0.0 if self.batch.is_ghost else float(self.batch.num_records)


class AllReduceController:
    """
    data_shard_service: where records come from; None: the script finds its own batches.
    backward_passes_per_step: batches of each worker per step.
    global_batch_num_per_step: batches of all workers together per step, however many they are; quick ones do more."""

    def __init__(
        self,
        data_shard_service: RecordIndexService | None = None,
        *,
        backward_passes_per_step: int = 1,
        global_batch_num_per_step: int | None = None,
    ) -> None:
        _check(data_shard_service, backward_passes_per_step, global_batch_num_per_step)
        is_global = global_batch_num_per_step is not None
        self._engine = process_engine.current()
        settings = Settings(
            num_micro_batches=global_batch_num_per_step,
            micro_batches_per_worker=None if is_global else backward_passes_per_step,
            reduce="fast",
            counts_empty_steps=False,
        )
        self._engine.work.configure(settings, _ControllerData(self))
        self._gate = StepGate(self._engine)
        self._service = data_shard_service
        self._usage = Usage()
        self._calls: list[_TrainCall] = []  # of the step under way …
        self._failed: list[tuple[RecordBatch, str]] = []  # … in which the function failed, and why
        self._step = 0  # … which is this one
        self._num_registered = 0
        self._epoch = 0
        self._elsewhere: Ranges = ()  # without a coordinator: what other workers have used
        self._is_in_scope = self._has_left = False
        if data_shard_service is not None:
            self._engine.registry.add("samples", self._usage)

    # --- what all workers hold ----------------------------------------------------------------------------

    def set_broadcast_model(self, model: nn.Module) -> None:
        """Newcomers get this model's parameters and buffers; its gradients are averaged over the group."""
        self._engine.registry.add(self._name("model"), unwrap(model, self._engine))

    def set_broadcast_optimizer(self, optimizer: Optimizer) -> None:
        """Its step() takes the average over the group, once per step of all workers; newcomers get its state."""
        self._engine.registry.add(self._name("optimizer"), optimizer)
        self._gate.bind_optimizer(optimizer)

    def set_broadcast_state(self, thing: Any) -> None:
        """Anything with state_dict and load_state_dict. Schedulers and a GradScaler act once per global step."""
        name = self._name("state")
        self._engine.registry.add(name, thing)
        if isinstance(thing, LRScheduler):
            self._gate.bind_scheduler(thing, name)
        elif isinstance(thing, GradScaler):
            self._gate.bind_scaler(thing)

    def _name(self, kind: str) -> str:
        self._num_registered += 1
        return f"{kind} {self._num_registered}"

    @property
    def num_steps(self) -> int:
        """Committed steps."""
        return self._engine.visible_step

    @property
    def current_epoch(self) -> int:
        """Of the latest batch."""
        return self._epoch

    @property
    def rank(self) -> int:
        """Of this worker among those that train now; one of them has 0."""
        return self._engine.visible_world.rank

    @property
    def world_size(self) -> int:
        return self._engine.visible_world.size

    # --- the loop -----------------------------------------------------------------------------------------

    @contextmanager
    def scope(self) -> Iterator[AllReduceController]:
        """Be one of the workers that train together; after an exception, too, the others continue without this one."""
        self._check_not_left()
        self._gate.check_ready()
        self._engine.regrouping.join()
        try:
            if self._engine.next_micro_batch().is_rehearsal:
                self._stay_outside()
            self._is_in_scope = True
            yield self
            self._engine.regrouping.conclude()
        except Exception as error:
            self._engine.regrouping.stop_job_for(error)
            raise
        finally:
            self._is_in_scope, self._has_left = False, True
            self._engine.regrouping.leave("it left its scope")

    def _stay_outside(self) -> None:
        """Make a newcomer's first call a rehearsal. A script that chooses its own batches may need the shared state to
        choose them, so it joins first."""
        if self._service is None:
            self._engine.regrouping.be_ready()
        else:
            self._service.rehearse()

    def elastic_run(self, function: Callable[P, R]) -> Callable[P, R]:
        """Wrap a function that trains on one batch: it is retried when a peer is lost; its own errors are raised."""

        latest: list[Any] = [None]

        @functools.wraps(function)
        def train(*args: P.args, **kwargs: P.kwargs) -> R:
            self._check_not_left()
            if self._service is not None and not self._is_in_scope:
                raise UsageError(
                    "a function of elastic_run was called outside of the scope",
                    hint="loop inside `with controller.scope():`",
                    code="train-outside-scope",
                )
            batch = self._service.take() if self._service is not None else None
            call = _TrainCall(run=lambda: function(*args, **kwargs), batch=batch)
            if self._is_left_over(batch):
                call.result = latest[-1]
            else:
                self._train(call)
            latest[:] = [call.result]
            result: R = call.result
            return result

        return train

    def _check_not_left(self) -> None:
        if self._has_left:
            raise UsageError(
                "this worker has left its scope, and the others continue without it",
                hint="enter controller.scope() once, around all epochs",
                code="scope-left",
            )

    def _is_left_over(self, batch: RecordBatch | None) -> bool:
        """A ghost that was read ahead when all agreed on the end: no other worker would take part in its step."""
        return batch is not None and batch.is_ghost and self._service is not None and self._service.has_ended

    def _train(self, call: _TrainCall) -> None:
        if call.batch is not None:
            self._epoch = call.batch.epoch
        self._calls.append(call)
        while not call.is_held:
            self._compute(next(each for each in self._calls if not each.is_held))

    # --- checkpoints --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """To be saved with model and optimizer: steps, and the records that are in the model."""
        state: dict[str, Any] = {"num_steps": self._engine.step}
        if self._service is not None:
            elsewhere = [LeasePart(lease=0, start=start, count=stop - start) for start, stop in self._elsewhere]
            state["records"] = self._service.state_dict([*self._usage.through(self._engine.step), *elsewhere])
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from there; call it before the scope is entered. An empty state is a fresh start: no record is in
        the model."""
        self._engine.work.resume(state.get("num_steps", 0))
        if self._service is not None and ("records" in state or not state):
            self._service.load_state_dict(state.get("records", {}))

    # --- a batch ------------------------------------------------------------------------------------------

    def _compute(self, call: _TrainCall) -> None:
        """One call as one micro-batch of the step that is next."""
        engine = self._engine
        micro_batch = engine.next_micro_batch()
        step = engine.step
        self._sort_out(step)
        # A ghost: all micro-batches of the step are computed, or others' to compute; the call is for the next one.
        is_in_step = not micro_batch.is_ghost
        if is_in_step and call.weight and call.batch is not None:
            self._usage.mine.extend(call.batch.parts)
        self._gate.begin()
        engine.begin_micro_batch(micro_batch, call.weight)
        call.is_held = is_in_step
        try:
            call.result = call.run()
            self._gate.end()
            if micro_batch.is_rehearsal and call.batch is not None:
                self._calls.remove(call)
                call.is_held = True
        except PeerLost as lost:
            engine.abandon_micro_batch(lost)
            if engine.step != step:  # the others have committed it, with what was held here, and sent their state
                call.is_held, call.is_used = False, call.is_held or call.is_used
                self._calls = [*(each for each in self._calls if not each.is_held and each is not call), call]
            else:
                self._start_over()
        except BaseException as error:
            engine.abandon_micro_batch(error)
            if micro_batch.is_rehearsal and self._service is not None:
                self._service.rehearse()  # a script that continues joins the others with its next call
            self._drop(call, f"{type(error).__name__}: {error}")
            if (better := explain(error)) is not error:
                raise better from error
            raise

    def _drop(self, call: _TrainCall, reason: str) -> None:
        """Its function failed. If that was after the step's commit, the call is not of the step under way."""
        if any(each is call for each in self._calls):
            self._calls = [each for each in self._calls if each is not call]
            if call.weight and call.batch is not None:
                self._failed.append((call.batch, reason))
            self._start_over()

    def _sort_out(self, step: int) -> None:
        """Which calls are in this step's sum: since the last micro-batch the step before may have been committed, or
        broken.

        The gradients of a call that failed may have been complete. If they are in no sum, its records are free."""
        if step != self._step:
            self._calls = [call for call in self._calls if not call.is_held]
            self._failed = []
        self._step = step
        self._start_over()
        for batch, reason in self._failed:
            if self._service is not None and not set(batch.parts) <= set(self._usage.mine):
                self._service.fail(batch, reason)
        self._failed = [each for each in self._failed if set(each[0].parts) <= set(self._usage.mine)]

    def _start_over(self) -> None:
        """If a micro-batch broke off half-way, it has spoiled the sum of those before it in this step."""
        if not self._engine.work.held:
            self._usage.mine.clear()
            for each in self._calls:
                each.is_held = False

    def _committed(self, decision: PulseDecision) -> None:
        self._calls = [call for call in self._calls if not call.is_held]
        if self._service is not None:
            notes = self._hear(decision)
            self._usage.committed(self._engine.step, notes)
            emit("samples.used", step=self._engine.step, parts=[[p.start, p.count] for n in notes for p in n.used])
            if self._service.is_shared:
                self._report(self._engine.step - 1)  # which this step has proved
            else:
                self._keep(notes)

    def _passed(self, decision: PulseDecision) -> None:
        """A step without any weight: all workers took part, so all hold the last one that counted."""
        if self._service is not None:
            self._calls = [call for call in self._calls if not call.is_held]
            self._usage.heard(self._hear(decision))
            if self._service.is_shared:
                self._report(self._engine.step)

    # --- samples ------------------------------------------------------------------------------------------

    def _note(self) -> bytes:
        return self._usage.note(is_end=self._service.is_end).pack() if self._service is not None else b""

    def _hear(self, decision: PulseDecision) -> list[UsageNote]:
        notes, service = [UsageNote.unpack(raw) for raw in decision.notes], self._service
        if service is not None and (any if service.is_shared else all)(note.is_end for note in notes):
            service.end()
        return notes

    def _report(self, step: int) -> None:
        """One worker reports for all; the others keep what it has not reported yet, in case it is lost."""
        parts = self._usage.through(step)
        if parts and self._engine.world.rank == 0 and self._service is not None:
            self._service.report(parts, lambda: self._usage.reported(step))

    def _keep(self, notes: list[UsageNote]) -> None:
        """Without a coordinator each worker serves itself, and a loss ends all: each commit is reported."""
        assert self._service is not None
        world, step = self._engine.world, self._engine.step
        parts = [part for rank, note in enumerate(notes) if rank != world.rank for part in note.used]
        self._elsewhere = merged([*self._elsewhere, *((part.start, part.start + part.count) for part in parts)])
        self._service.report(notes[world.rank].used)
        self._usage.reported(step)

    def _settled(self) -> None:
        """In a new generation all hold the same step: report the samples used so far, also by workers that are lost."""
        if self._service is None:
            return
        world, is_speaker = self._engine.world, self._engine.world.rank == 0
        done = self._usage.through(self._engine.step) if is_speaker else []
        self._service.join_steps(is_newcomer=self._engine.regrouping.came_late, generation=world.generation)
        self._service.regrouped(world.generation, done, settles=is_speaker)


class _ControllerData(DataSource):
    """What a controller gives the engine."""

    def __init__(self, controller: AllReduceController) -> None:
        self._controller = controller

    def before_first_step(self) -> None:
        self._controller._gate.adopt_schedulers()

    def note(self) -> bytes:
        return self._controller._note()

    def committed(self, decision: PulseDecision) -> None:
        self._controller._committed(decision)

    def passed(self, decision: PulseDecision) -> None:
        self._controller._passed(decision)

    def settled(self) -> None:
        self._controller._settled()


def _check(service: Any, backward_passes: int, global_batches: int | None) -> None:
    if service is not None and not isinstance(service, RecordIndexService):
        raise UsageError(
            f"data_shard_service is a {type(service).__name__}",
            hint="pass an everstep.RecordIndexService, or None",
            code="data-shard-service-wrong-type",
        )
    for name, number in ("backward_passes_per_step", backward_passes), ("global_batch_num_per_step", global_batches):
        if number is not None and number < 1:
            raise UsageError(
                f"{name}={number} is less than 1", hint=f"use {name}=1 or more", code="batches-per-step-not-positive"
            )
    if global_batches is not None and backward_passes != 1:
        raise UsageError(
            f"backward_passes_per_step={backward_passes} and global_batch_num_per_step={global_batches} at once",
            hint="give one of them: batches of each worker per step, or of all workers together",
            code="batches-per-step-twice",
        )


PyTorchAllReduceController = AllReduceController  # ElasticDL's name for it
