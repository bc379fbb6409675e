"""Optimizers, schedulers and gradient scalers that act once per global batch, at the right moment, in any world.

The loop's body calls them for every micro-batch; they act with the worker's last one, when the mean over all
micro-batches is there. A scheduler may also be stepped once after each epoch. Bound in place: the script holds these
objects."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType, MethodType
from typing import Any, Protocol

from torch.amp import GradScaler, grad_scaler
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from everstep.engine.step import Engine
from everstep.errors import UsageError


class Epochs(Protocol):
    """Knows how the script goes through its epochs."""

    @property
    def is_in_one(self) -> bool: ...
    def expect_after(self, name: str) -> None:
        """Something with this name may be done once after each epoch."""

    def expect_in_steps(self, name: str) -> None:
        """It has shown that it is done in steps instead."""

    def is_first_after(self, name: str) -> bool:
        """Whether it is still to be done after the epoch just left."""


class StepGate:
    """Open for the last micro-batch of this worker in a step; knows whether all optimizers have passed."""

    def __init__(self, engine: Engine, epochs: Epochs | None = None) -> None:
        self._engine = engine
        self._epochs = epochs
        self._optimizers: list[Optimizer] = []
        self._schedulers: list[Any] = []
        self._num_passed = 0
        self.has_scaler = False
        self.is_gathering: Callable[[], bool] = lambda: False  # this step only adds to gradients: no optimizer steps

    def bind_optimizer(self, optimizer: Optimizer) -> None:
        """As a method: a scheduler that is made later wraps it again, and expects one."""
        number = len(self._optimizers)
        self._optimizers.append(optimizer)
        original = optimizer.step

        def step(_: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if not self.has_scaler and _is_called_by_scaler():
                raise _unknown_scaler()
            if not self.is_open("optimizer.step()"):
                return None
            self._check_known(optimizer)
            if self._engine.await_sum():
                self._engine.work.comparison.note_update(number, optimizer)
            return self.act(lambda: original(*args, **kwargs))

        step.__dict__.update(getattr(original, "__dict__", {}))  # schedulers leave marks on what they wrapped
        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]

    def bind_scheduler(self, scheduler: Any, name: str | None) -> None:
        """By a subclass: an attribute of the instance would become part of the scheduler's state_dict.

        `name`: it is stepped in steps, or once after each epoch. None: between steps, at any time that all have in
        common."""
        gate, kind = self, type(scheduler)
        self._schedulers.append(scheduler)
        if self._epochs is not None and name is not None:
            self._epochs.expect_after(name)

        class Bound(kind):  # type: ignore[misc, valid-type]
            def step(self, *args: Any, **kwargs: Any) -> None:
                if gate._is_open_for_scheduler(name):
                    super().step(*args, **kwargs)

        _disguise(Bound, kind)
        scheduler.__class__ = Bound

    def adopt_schedulers(self) -> None:
        """One that was not prepared would act in every micro-batch, on each worker as often as it has micro-batches."""
        known = {id(part) for each in self._schedulers for part in (each, *getattr(each, "_schedulers", ()))}
        for number, optimizer in enumerate(self._optimizers):
            found = [each for each in _schedulers_of(optimizer) if id(each) not in known]
            if len(found) > 1:
                raise UsageError(
                    f"{len(found)} schedulers of one optimizer were not prepared: "
                    + ", ".join(sorted(type(each).__name__ for each in found)),
                    hint="trainer.prepare(optimizer, [one, other]), or controller.set_broadcast_state(scheduler)",
                    code="schedulers-not-prepared",
                )
            for each in found:
                name = f"scheduler of optimizer {number}"
                self._engine.registry.add(name, each)
                self.bind_scheduler(each, name if self._epochs is not None else None)

    def bind_scaler(self, scaler: GradScaler) -> None:
        gate, kind = self, type(scaler)
        self.has_scaler = True

        class Bound(kind):  # type: ignore[misc, valid-type]
            def unscale_(self, optimizer: Optimizer) -> None:
                if gate.is_open("scaler.unscale_()") and not gate._engine.is_void:
                    super().unscale_(optimizer)

            def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
                if not gate.is_open("scaler.step()"):
                    return None
                if gate._engine.is_void:
                    return gate.act(lambda: None)
                passed = gate._num_passed
                result = super().step(optimizer, *args, **kwargs)
                if gate._num_passed == passed:  # overflown: the same for all workers, whose gradients are the same
                    gate.act(lambda: None)
                return result

            def update(self, new_scale: Any = None) -> None:
                if gate.is_open("scaler.update()") and not gate._engine.is_void and not gate.is_gathering():
                    super().update(new_scale)

        _disguise(Bound, kind)
        scaler.__class__ = Bound

    def is_open(self, what: str) -> bool:
        if not self._engine.is_in_micro_batch:
            raise UsageError(
                f"{what} outside of a step would change this worker alone",
                hint="call it inside `with trainer.step():`, or in the function given to elastic_run",
                code="called-outside-step",
            )
        return self._engine.is_last_micro_batch

    def _is_open_for_scheduler(self, name: str | None) -> bool:
        if name is None:
            return self._engine.is_last_micro_batch if self._engine.is_in_micro_batch else True
        epochs = self._epochs
        if epochs is not None and self._engine.is_in_micro_batch:
            epochs.expect_in_steps(name)
        if self._engine.is_in_micro_batch or epochs is None or epochs.is_in_one:
            return self.is_open("scheduler.step()") and not self._engine.is_void
        return epochs.is_first_after(name)

    def act(self, apply: Callable[[], Any]) -> Any:
        self._num_passed += 1
        return self._engine.update(apply, is_final=self._num_passed == len(self._optimizers))

    def _check_known(self, optimizer: Optimizer) -> None:
        """A gradient that the engine has not summed would make this worker's weights differ from the others'."""
        known = self._engine.work.gradients.ids
        unknown = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
        if local := [p for p in unknown if p.grad is not None]:
            raise UsageError(
                f"{len(local)} of the optimizer's parameters, one of shape {list(local[0].shape)} first, have "
                "gradients of this worker alone: no registered model has them, or they were frozen at the first step",
                hint='trainer.register("name", module) for all that is trained; freeze parameters after the first step',
                code="gradients-not-summed",
            )

    def check_ready(self) -> None:
        if not self._optimizers:
            raise UsageError(
                "step() before prepare(): no optimizer was prepared",
                hint="first call trainer.prepare(optimizer), or controller.set_broadcast_optimizer(optimizer)",
                code="no-optimizer-prepared",
            )

    def begin(self) -> None:
        self.check_ready()
        self._num_passed = 0

    def end(self) -> None:
        """At the end of the body: the step is committed, also if only some optimizers were stepped."""
        engine = self._engine
        if engine.is_last_micro_batch and self._num_passed == 0:
            raise UsageError(
                "the body of the step's last micro-batch ended without optimizer.step()",
                hint="call optimizer.step() in every pass of the body; it acts with the last micro-batch only",
                code="no-optimizer-step",
            )
        if engine.is_last_micro_batch and self._num_passed < len(self._optimizers):
            engine.commit()
        engine.end_micro_batch()
        engine.after_commit()


def _schedulers_of(optimizer: Optimizer) -> list[LRScheduler]:
    """All that exist, also those that the script keeps elsewhere, except those inside of others."""
    holders = gc.get_referrers(optimizer)
    attributes = [each for each in holders if type(each) is dict and each.get("optimizer") is optimizer]
    if attributes:
        holders += gc.get_referrers(*attributes)
    found = {id(each): each for each in holders if isinstance(each, LRScheduler) and each.optimizer is optimizer}
    inner = {id(part) for each in found.values() for part in getattr(each, "_schedulers", ())}
    return [each for number, each in found.items() if number not in inner]


def explain(error: BaseException) -> BaseException:
    """torch's complaint about a scaler that the trainer does not know, in words that help."""
    is_about_it = isinstance(error, AssertionError) and "No inf checks were recorded" in str(error)
    return _unknown_scaler() if is_about_it else error


def _is_called_by_scaler() -> bool:
    """Whether a GradScaler has called the optimizer's step, whose caller asks."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == lr_scheduler.__file__:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == grad_scaler.__file__


def _unknown_scaler() -> UsageError:
    return UsageError(
        "the trainer does not know this GradScaler, which must act once per global batch, not in every micro-batch",
        hint="trainer.prepare(optimizer, scheduler, scaler), or controller.set_broadcast_state(scaler)",
        code="scaler-not-prepared",
    )


def _disguise(bound: type, kind: type) -> None:
    bound.__name__, bound.__qualname__, bound.__module__ = kind.__name__, kind.__qualname__, kind.__module__
