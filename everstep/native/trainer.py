"""ElasticTrainer runs the body of the loop for the right micro-batches, and applies each step for all workers or for
none."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

from torch import nn
from torch.amp import GradScaler
from torch.utils import data

from everstep import env
from everstep.data.loader import DataLoader
from everstep.data.position import Position
from everstep.engine import process_engine
from everstep.engine.arguments import check_kind
from everstep.engine.data_parallel import is_classic, unwrap
from everstep.engine.data_source import DataSource
from everstep.engine.optimizer_gates import StepGate, explain
from everstep.engine.plan import MicroBatch
from everstep.engine.pulse import NOWHERE, DataPlace, PulseDecision
from everstep.engine.settings import Settings
from everstep.engine.step import Engine
from everstep.errors import PeerLost, UsageError
from everstep.events import emit
from everstep.native.logged import Logged

T = TypeVar("T")

_REPORT_S = 0.5  # numbers that change faster cannot be read


class ElasticTrainer:
    """
    dataloader: an everstep.DataLoader, or torch's own with a map-style dataset, which becomes one in place.
    micro_batches: micro-batches per global batch; defaults to the largest number of workers that the job may have.
    reduce: "exact" gives the same bits for every number of workers and every failure; "fast" sums in order of arrival.
    backend: how gradients travel: "nccl", "gloo", or "auto", which uses NCCL if each worker has its own GPU;
    defaults to init_process_group's, otherwise to EVERSTEP_BACKEND, otherwise to "auto".
    seed: of dropout and all other randomness in the body.
    threads: torch's threads in each worker, in exact mode.
    engine: for tests that need several in one process; by default the process's own."""

    def __init__(
        self,
        model: nn.Module,
        dataloader: data.DataLoader[Any] | None = None,
        *,
        micro_batches: int | None = None,
        reduce: str = "exact",
        backend: str | None = None,
        seed: int = 0,
        threads: int = 1,
        engine: Engine | None = None,
    ) -> None:
        _check_model(model)
        self.engine = engine or process_engine.current(is_fixed=is_classic(model))
        self._are_micro_batches_given = micro_batches is not None
        self._settings = Settings(reduce=reduce, backend=backend, seed=seed, threads=threads)
        self._loader = DataLoader.adopt(dataloader) if dataloader is not None else None
        self._data = _LoopData(self)
        self._set_micro_batches(env.max_workers() if micro_batches is None else micro_batches)
        self.gate = StepGate(self.engine, self._loader.position if self._loader is not None else None)
        self._num_named: dict[str, int] = {}
        self._micro_batch: MicroBatch | None = None
        self._logged, self._at = Logged(), (0, 0, 0.0)  # of the micro-batch in progress: step, number, weight
        self._on_leave: list[Callable[[], Any]] = []
        self._is_left_by_all = False
        self._reported_at = float("-inf")
        self._num_epochs: int | None = None  # of `epochs`; None: unknown
        self._parameters = {id(each) for each in model.parameters()}
        self._must_learn = True  # by the first step: one without any gradient is a mistake of the script
        self._is_unused = False
        self.register("model", model)
        self.engine.registry.add("logged", self._logged)
        if self._loader is not None:
            self.engine.registry.add("data", self._loader.position)

    def _set_micro_batches(self, micro_batches: int) -> None:
        self._settings = replace(self._settings, num_micro_batches=micro_batches)
        self.engine.work.configure(self._settings, self._data)
        if self._loader is not None:
            self._loader.bind(self.engine, micro_batches)

    @property
    def num_steps(self) -> int:
        """Committed steps."""
        return self.engine.visible_step

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches per global batch."""
        assert self._settings.num_micro_batches is not None
        return self._settings.num_micro_batches

    @property
    def is_last_micro_batch(self) -> bool:
        """Inside a step: this is the worker's last micro-batch, the one with which optimizer.step() acts."""
        return self.engine.is_last_micro_batch

    @property
    def rank(self) -> int:
        return self.engine.visible_world.rank

    @property
    def world_size(self) -> int:
        return self.engine.visible_world.size

    def register(self, name: str, thing: T) -> T:
        """Make an object with state_dict and load_state_dict part of the state that newcomers receive."""
        self.engine.registry.add(name, unwrap(thing, self.engine) if isinstance(thing, nn.Module) else thing)
        return thing

    def prepare(self, *things: Any) -> Any:
        """Bind optimizers, learning-rate schedulers and gradient scalers, or lists of them, in any order; returns them
        in the same shape and order."""
        found = _sorted_by_kind(things)
        for each in found["optimizer"]:
            self._check_owner(each)
        for each in found["optimizer"]:
            self.register(self._numbered("optimizer"), each)
            self.gate.bind_optimizer(each)
        for each in found["scheduler"]:
            name = self._numbered("scheduler")
            self.register(name, each)
            self.gate.bind_scheduler(each, name)
        for each in found["scaler"]:
            self.register(self._numbered("scaler"), each)
            self.gate.bind_scaler(each)
        return things[0] if len(things) == 1 else things

    def _numbered(self, kind: str) -> str:
        number = self._num_named[kind] = self._num_named.get(kind, -1) + 1
        return f"{kind}{number or ''}"

    def log(self, **values: Any) -> None:
        """Inside a step, best before `backward()`: numbers of this micro-batch, such as loss=loss, for `means` and for
        the progress line."""
        if not self.engine.is_in_micro_batch:
            raise UsageError(
                "log() outside of a step", hint="call it in `with trainer.step():`", code="log-outside-step"
            )
        step, micro_batch, weight = self._at
        if weight:
            self._logged.record(step, micro_batch, weight, values)

    def means(self) -> dict[str, float]:
        """Between epochs, on all workers: the means of what was logged since the last call, over all micro-batches of
        all workers, each by its weight. The same on all of them, and for any number of them."""
        said = self.engine.gather(self._logged.known(), "means")
        return self._logged.take(said, before_step=self.engine.step)

    def on_leave(self, act: T) -> T:
        """Call `act()` on each worker once all that are left are asked to leave (Ctrl-C, a preemption notice): after
        the step in progress, before they end. For saving a checkpoint: as long as one worker continues, it has the
        state."""
        if not callable(act):
            raise UsageError(
                f"on_leave() got a {type(act).__name__}", hint="trainer.on_leave(save)", code="on-leave-not-callable"
            )
        self._on_leave.append(act)
        return act

    def hand_over(self, note: Callable[[], bytes], committed: Callable[[PulseDecision], None]) -> None:
        """To a door built on this one, with notes and metrics of its own; it need not train on all batches.

        `note()`: what all workers are to know with each step; `committed(decision)` then has all workers' notes."""
        self._data.guest = (note, committed)

    def _committed(self, decision: PulseDecision) -> None:
        self._logged.hear(decision.notes, before_step=self.engine.step - 1)
        self._is_left_by_all = len(decision.leavers) == self.engine.world.size
        is_used = any(decision.used) or decision.is_empty or not self._parameters
        self._is_unused = self._must_learn and not is_used
        self._must_learn = self._must_learn and not any(decision.used)
        self._report_progress()

    def _report_progress(self) -> None:
        """Now and then, by the first worker."""
        now = time.monotonic()
        if self.rank or self._loader is None or now - self._reported_at < _REPORT_S:
            return
        self._reported_at = now
        emit(
            "training.progress",
            step=self.num_steps,
            epoch=self._loader.position.epoch,
            num_epochs=self._num_epochs,
            num_steps=len(self._loader) * self._num_epochs if self._num_epochs else None,
            loss=self._logged.last.get("loss"),
        )

    def _check_owner(self, optimizer: Any) -> None:
        groups = optimizer.param_groups
        if groups and not any(id(each) in self._parameters for group in groups for each in group["params"]):
            raise UsageError(
                "the optimizer has no parameter of the trainer's model: its steps would change nothing",
                hint="make it of this model, such as torch.optim.SGD(model.parameters(), lr=0.1)",
                code="optimizer-of-another-model",
            )

    def _after_step(self) -> None:
        if self._is_unused:
            raise UsageError(
                f"no parameter had a gradient in step {self.num_steps}: it changed nothing",
                hint="call loss.backward() before optimizer.step(), on a loss that comes from the trainer's model",
                code="step-without-gradients",
            )
        if self._is_left_by_all:
            self._is_left_by_all = False
            self._act_on_leave()

    def _act_on_leave(self) -> None:
        for act in self._on_leave:
            act()

    # --- the loop -----------------------------------------------------------------------------------------

    def epochs(self, number: int) -> Iterator[int]:
        """The epochs that are still to be trained, up to `number`; then all workers end together.

        A newcomer begins with the one that the others are in. A job resumed from a checkpoint of an epoch's last step
        gets that epoch again, without batches, if a scheduler has still to be stepped after it."""
        loader = self._loader
        if loader is None:
            raise UsageError(
                "epochs() without a loader", hint="ElasticTrainer(model, dataloader)", code="epochs-without-loader"
            )
        self._num_epochs = number
        epoch = self._first_epoch(loader, number)
        while epoch < number:
            loader.set_epoch(epoch)
            yield epoch
            if self.engine.rehearsal.is_due:  # the script asked for no batch
                self.engine.regrouping.be_ready()
            else:
                loader.leave_epoch(epoch)
            epoch = max(epoch + 1, loader.position.first_unfinished)
        self.engine.regrouping.conclude()

    def _first_epoch(self, loader: DataLoader, number: int) -> int:
        """A newcomer rehearses before it knows the others' position, so it computes their epoch from the number of
        their steps. The result is never too late. It is too early only if they finish that epoch meanwhile, or have
        left an epoch early."""
        if self.engine.next_micro_batch().is_rehearsal:
            epoch = self.engine.regrouping.membership.others_step() // len(loader)
            if epoch < number:
                return epoch
            self.engine.regrouping.be_ready()  # they have finished this loop: there is nothing to rehearse
        return loader.position.first_unfinished

    def micro_batches(self, steps: int) -> Iterator[MicroBatch]:
        """Without a loader: the micro-batches that this worker computes until `steps` steps are committed; then all
        end."""
        while self.engine.step < steps:
            micro_batch = self.engine.next_micro_batch()
            if self.engine.step < steps:
                self._micro_batch = micro_batch
                yield micro_batch
        self.engine.regrouping.conclude()

    def step(self, weight: float | None = None) -> _Step:
        """One micro-batch. `weight`: its share in the mean, such as its number of tokens; else its number of
        samples."""
        return _Step(self, weight)

    def _begin(self, weight: float | None) -> None:
        self.gate.begin()
        micro_batch, self._micro_batch = self._micro_batch, None
        usual = 1.0
        if self._loader is not None:
            offered = self._loader.take_offered()
            if offered is None:
                raise UsageError(
                    "step() without a batch: the trainer's loader was not asked for one",
                    hint="loop over the loader that was given to ElasticTrainer; one step() for each batch",
                    code="step-without-batch",
                )
            micro_batch, usual = offered
        micro_batch, weight = micro_batch or self.engine.next_micro_batch(), usual if weight is None else weight
        self._at = (self.engine.step, micro_batch.index, 0.0 if micro_batch.is_ghost else weight)
        self.engine.begin_micro_batch(micro_batch, weight)

    # --- checkpoints --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """To be saved with model, optimizer and scheduler: steps, micro-batches, seed, and the position in the data."""
        state: dict[str, Any] = {
            "num_steps": self.engine.step,
            "micro_batches": self.num_micro_batches,
            "seed": self._settings.seed,
        }
        logged = self._logged.state_dict()
        state |= {"logged": logged} if logged else {}
        return state | ({"data": self._loader.state_dict()} if self._loader is not None else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from there, with the number of micro-batches of the state. An empty state is a fresh start."""
        if not state:
            return
        micro_batches, seed = state["micro_batches"], state["seed"]
        if self._are_micro_batches_given and micro_batches != self.num_micro_batches:
            raise UsageError(
                f"micro_batches={self.num_micro_batches}, but the state has {micro_batches}: batches would differ",
                hint=f"use micro_batches={micro_batches}, or leave it out",
                code="micro-batches-differ-from-state",
            )
        self._settings = replace(self._settings, seed=seed)
        self._set_micro_batches(micro_batches)
        self.engine.work.resume(state["num_steps"])
        self._logged.load_state_dict(state.get("logged", {}))
        if self._loader is not None:
            self._loader.load_state_dict(state.get("data", {}))


class _Step:
    """The context of one micro-batch. A lost peer is absorbed: the loop's next micro-batch is the right one."""

    def __init__(self, trainer: ElasticTrainer, weight: float | None) -> None:
        self._trainer = trainer
        self._weight = weight

    def __enter__(self) -> None:
        self._trainer._begin(self._weight)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            try:
                self._trainer.gate.end()
            except PeerLost as lost:
                self._trainer.engine.abandon_micro_batch(lost)
            self._trainer._after_step()
            return False
        self._trainer.engine.abandon_micro_batch(error)
        if (better := explain(error)) is not error:
            raise better from error
        return isinstance(error, PeerLost)


class _LoopData(DataSource):
    """What a trainer's loop gives the engine: the loader's position, and what the script logs."""

    def __init__(self, trainer: ElasticTrainer) -> None:
        self._trainer = trainer
        self.guest: tuple[Callable[[], bytes], Callable[[PulseDecision], None]] | None = None  # a door built on this

    @property
    def _position(self) -> Position | None:
        return self._trainer._loader.position if self._trainer._loader is not None else None

    def before_first_step(self) -> None:
        self._trainer.gate.adopt_schedulers()

    def place(self) -> DataPlace:
        return self._position.place() if self._position is not None else NOWHERE

    def void_micro_batches(self) -> Collection[int]:
        return self._position.void_micro_batches() if self._position is not None else ()

    def note(self) -> bytes:
        return self._trainer._logged.note() if self.guest is None else self.guest[0]()

    def last_note(self, note: bytes) -> bytes:
        return self._trainer._logged.last_note(note) if self.guest is None else note

    def leave(self) -> None:
        self._trainer._act_on_leave()

    def committed(self, decision: PulseDecision) -> None:
        if self.guest is None:
            self._trainer._committed(decision)
        if self._position is not None:
            self._position.advance()  # with every step, empty or not
        if self.guest is not None:
            self.guest[1](decision)


def _sorted_by_kind(things: Sequence[Any]) -> dict[str, list[Any]]:
    """Refuses, by its place, what `prepare` does not take."""
    found: dict[str, list[Any]] = {"optimizer": [], "scheduler": [], "scaler": []}
    for number, thing in enumerate(things, start=1):
        is_list = isinstance(thing, list | tuple)
        for each in thing if is_list else [thing]:
            kind = _kind(each)
            if kind is None:
                raise UsageError(
                    "prepare() takes optimizers, schedulers and scalers; "
                    f"argument {number} {'holds' if is_list else 'is'} a {type(each).__name__}",
                    hint="pass model and loader to ElasticTrainer(model, dataloader); other state to "
                    'trainer.register("name", thing)',
                    code="prepare-wrong-kind",
                )
            found[kind].append(each)
    return found


def _kind(thing: Any) -> str | None:
    """Schedulers and optimizers need not derive from torch's classes: libraries have their own."""
    if isinstance(thing, GradScaler):
        return "scaler"
    if isinstance(thing, nn.Module) or not all(
        callable(getattr(thing, name, None)) for name in ("step", "state_dict", "load_state_dict")
    ):
        return None
    return "optimizer" if hasattr(thing, "param_groups") else "scheduler"


def _check_model(model: Any) -> None:
    hint = "ElasticTrainer(model, dataloader), in this order"
    check_kind("ElasticTrainer's model", model, nn.Module, hint=hint, code="model-not-a-module")
    unplaced = [name for name, tensor in model.named_parameters() if tensor.device.type == "meta"]
    if unplaced:
        raise UsageError(
            f"{len(unplaced)} parameters have no memory yet (device meta), {unplaced[0]} first",
            hint="place the model: model.to_empty(device=…), then initialize it",
            code="model-on-meta-device",
        )
    devices = sorted({str(tensor.device) for tensor in model.parameters()})
    if len(devices) > 1:
        raise UsageError(
            f"parameters are on {', '.join(devices)}", hint="a worker has one device", code="model-on-several-devices"
        )
