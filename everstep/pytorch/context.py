"""`PyTorchTrialContext`: a trial wraps its models and optimizers in it, and asks it for settings and progress."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.optim import Optimizer

from everstep import env
from everstep.engine.arguments import check_count, check_kind
from everstep.engine.step import Engine
from everstep.engine.world import ALONE
from everstep.errors import UsageError
from everstep.native import ElasticTrainer
from everstep.pytorch.batches import ToDevice
from everstep.pytorch.gradient_aggregation import AggregatedGradients
from everstep.pytorch.profiling import ProfilerSettings, profiler_arguments
from everstep.pytorch.reducers import MetricReducer, Reducers
from everstep.pytorch.schedulers import LRScheduler, StepMode
from everstep.record.trial import current_trial

log = logging.getLogger("everstep")

_DDP_ARGUMENTS = set(inspect.signature(TorchDDP.__init__).parameters) - {"self", "module"}


class PyTorchTrialContext:
    """Created by `everstep.pytorch.init()`. One trial, one context."""

    def __init__(
        self,
        *,
        engine: Engine,
        hparams: Mapping[str, Any],
        exp_conf: Mapping[str, Any],
        distributed: Any,
        device: torch.device,
        micro_batches: int,
        aggregation_frequency: int = 1,
        enable_tensorboard_logging: bool = True,
        seed: int = 0,
        reduce: str = "exact",
        backend: str | None = None,
        threads: int = 1,
        checkpoints: str | None = None,
    ) -> None:
        code = "aggregation-frequency-not-positive"
        self.aggregation_frequency = check_count(
            "aggregation_frequency", aggregation_frequency, of="batches", code=code
        )
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.lr_schedulers: list[LRScheduler] = []
        self.scaler: GradScaler | None = None
        self.reducers = Reducers()
        self.aggregated: dict[int, AggregatedGradients] = {}  # by id of the optimizer
        self.distributed = distributed
        self.device = device
        self.has_tensorboard = enable_tensorboard_logging
        self.micro_batches = micro_batches
        self.seed, self.reduce, self.backend, self.threads = seed, reduce, backend, threads
        self.checkpoints = checkpoints
        self.experimental = Experimental(self)
        self.wants_stop = False
        self.to_device = ToDevice(device)
        self.moves_batches = True
        self.profiling: ProfilerSettings | None = None
        self.writer: Callable[[], Any] | None = None
        self.now: Callable[[], TrainingPosition] | None = None  # while training
        self.amp_scaler: GradScaler | None = None
        self.is_amp = False
        self.engine = engine
        self._hparams = dict(hparams)
        self._exp_conf = dict(exp_conf)
        self._trainer: ElasticTrainer | None = None  # once training has begun

    # --- wrapping -----------------------------------------------------------------------------------------

    def wrap_model(self, model: nn.Module, **ddp_arguments: Any) -> nn.Module:
        """Move the model to this worker's device; its gradients are summed over all workers. Returns the same model.

        DDP's arguments are accepted and have no effect."""
        self._check_early("wrap_model")
        check_kind("wrap_model", model, nn.Module, hint="give it a torch.nn.Module", code="not-a-model")
        if isinstance(model, TorchDDP):
            raise UsageError(
                "wrap_model got torch's DDP", hint="give it the model itself", code="model-is-wrapped-in-ddp"
            )
        if unknown := sorted(set(ddp_arguments) - _DDP_ARGUMENTS):
            raise UsageError(
                f"wrap_model got {unknown}", hint=f"DDP has {sorted(_DDP_ARGUMENTS)}", code="ddp-arguments-unknown"
            )
        if not any(model is each for each in self.models):
            self.models.append(model.to(self.device))
        return model

    def wrap_optimizer(
        self,
        optimizer: Optimizer,
        backward_passes_per_step: int = 1,
        fp16_compression: bool | None = None,
        average_aggregated_gradients: bool | None = None,
    ) -> Optimizer:
        """The optimizer steps once per global batch. Returns the same optimizer."""
        self._check_early("wrap_optimizer")
        check_kind("wrap_optimizer", optimizer, Optimizer, hint="give it one of torch.optim", code="not-an-optimizer")
        if backward_passes_per_step != 1 or fp16_compression:
            raise UsageError(
                "backward_passes_per_step and fp16_compression belong to Horovod, which is not supported",
                hint="for several batches per optimizer step: pytorch.init(aggregation_frequency=…)",
                code="horovod-arguments",
            )
        if id(optimizer) not in self.aggregated:
            self.optimizers.append(optimizer)
            self.aggregated[id(optimizer)] = AggregatedGradients(
                optimizer, is_mean=average_aggregated_gradients is not False
            )
        return optimizer

    def wrap_lr_scheduler(self, lr_scheduler: Any, step_mode: StepMode, frequency: int = 1) -> Any:
        """The trainer steps it, according to `step_mode`. Returns the same scheduler."""
        self._check_early("wrap_lr_scheduler")
        if not any(lr_scheduler is each.scheduler for each in self.lr_schedulers):
            self.lr_schedulers.append(LRScheduler(lr_scheduler, step_mode, frequency))
        return lr_scheduler

    def wrap_scaler(self, scaler: GradScaler) -> GradScaler:
        """Pass the scaler to step_optimizer, then call its update(). Returns the same scaler."""
        self._check_early("wrap_scaler")
        if self.scaler is not None and self.scaler is not scaler:
            raise UsageError("wrap_scaler got a second scaler", hint="one serves all optimizers", code="second-scaler")
        self.scaler = scaler
        return scaler

    def wrap_reducer(
        self, reducer: Any, name: str | None = None, for_training: bool = True, for_validation: bool = True
    ) -> MetricReducer:
        return self.reducers.wrap(reducer, name, for_training=for_training, for_validation=for_validation)

    def configure_apex_amp(self, *args: Any, **kwargs: Any) -> Any:
        raise UsageError("apex is not supported", hint="use context.experimental.use_amp()", code="apex")

    def _check_early(self, what: str) -> None:
        if self._trainer is not None:
            raise UsageError(
                f"{what} after training began", hint="wrap before fit()", code="wrapped-after-training-began"
            )

    def attach(self, trainer: ElasticTrainer) -> None:
        """Training begins: everything wrapped becomes part of the state of all workers."""
        self._trainer = trainer
        trainer.gate.is_gathering = lambda: not self._is_stepping
        for number, model in enumerate(self.models[1:], start=1):
            trainer.register(f"model{number}", model)
        for number, optimizer in enumerate(self.optimizers):
            trainer.register(f"optimizer{number}", optimizer)
            trainer.gate.bind_optimizer(optimizer)
            if self.aggregation_frequency > 1:
                trainer.register(f"aggregated{number}", self.aggregated[id(optimizer)])
        for number, each in enumerate(self.lr_schedulers):
            trainer.register(f"scheduler{number}", each.scheduler)
            trainer.gate.bind_scheduler(each.scheduler, None)
        if self.scaler is not None:
            trainer.register("scaler", self.scaler)
            trainer.gate.bind_scaler(self.scaler)

    # --- a batch ------------------------------------------------------------------------------------------

    def backward(
        self,
        loss: torch.Tensor,
        gradient: torch.Tensor | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        if self.amp_scaler is not None:
            loss = self.amp_scaler.scale(loss)
        loss.backward(gradient=gradient, retain_graph=retain_graph, create_graph=create_graph)

    def step_optimizer(
        self,
        optimizer: Optimizer,
        clip_grads: Callable[[Iterator[Any]], Any] | None = None,
        auto_zero_grads: bool = True,
        scaler: GradScaler | None = None,
    ) -> None:
        """Call it in every train_batch. The optimizer steps with the batch's last micro-batch, in every
        aggregation_frequency-th batch. `clip_grads` gets the parameters; their gradients are then the mean over all
        workers.

        Gradients start at zero in every batch; `auto_zero_grads=False` carries nothing over to the next."""
        trainer = self._trainer
        if trainer is None:
            raise _before_training("step_optimizer", "step-before-training")
        if id(optimizer) not in self.aggregated:
            raise UsageError(
                "an optimizer was not wrapped", hint="context.wrap_optimizer(optimizer)", code="optimizer-not-wrapped"
            )
        if self.aggregation_frequency > 1 and not auto_zero_grads:
            raise UsageError(
                f"auto_zero_grads=False with aggregation_frequency={self.aggregation_frequency}",
                hint="leave auto_zero_grads out: aggregated gradients are kept separately",
                code="auto-zero-with-aggregation",
            )
        scaler = self.amp_scaler if scaler is None else scaler
        if scaler is not None and scaler not in (self.scaler, self.amp_scaler):
            raise UsageError("a scaler was not wrapped", hint="context.wrap_scaler(scaler)", code="scaler-not-wrapped")
        if not trainer.gate.is_open("step_optimizer()") or not self.engine.await_sum():
            return
        aggregated = self.aggregated[id(optimizer)]
        if self.aggregation_frequency > 1:
            if not self._is_stepping:
                trainer.gate.act(aggregated.add)
                return
            aggregated.give()
        if clip_grads is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            clip_grads(iter(aggregated.parameters))
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
        aggregated.clear()

    @property
    def _is_stepping(self) -> bool:
        """Optimizers step with the batch in progress."""
        return (self._at("step_optimizer").batch + 1) % self.aggregation_frequency == 0

    def autocast(self, dtype: torch.dtype | None = None, enabled: bool = True) -> torch.autocast:
        """torch.autocast for this worker's device."""
        return torch.autocast(self.device.type, dtype=dtype, enabled=enabled)

    def prepare(self, batch: Any) -> Any:
        return self.to_device(batch) if self.moves_batches else batch

    def after_train_batch(self) -> None:
        """At the end of a micro-batch's body: automatic mixed precision updates its scale with each batch."""
        if self.amp_scaler is not None:
            self.amp_scaler.update()

    @property
    def is_chief(self) -> bool:
        """The current worker that writes for all; never a newcomer that the others have not admitted yet."""
        return self.engine.world.rank == 0 and self.engine.world is not ALONE

    def agree(self, value: Any) -> Any:
        """In a world that does not change: the first worker's value. Otherwise all workers must have the same value."""
        said = self.engine.gather(value) if env.coordinator_url() is None else None
        return value if said is None else said[0]

    # --- settings and progress ----------------------------------------------------------------------------

    def get_global_batch_size(self) -> int:
        size, code = self.get_hparam("global_batch_size"), "global-batch-size-not-positive"
        return check_count("global_batch_size", size, of="samples", code=code)

    def get_per_slot_batch_size(self) -> int:
        """Samples per micro-batch: the global batch size divided by the number of micro-batches, for any number of
        workers."""
        size, micro_batches = self.get_global_batch_size(), self.micro_batches
        if size % micro_batches:
            smaller, larger = size // micro_batches * micro_batches, (size // micro_batches + 1) * micro_batches
            near = f"{smaller} or {larger}" if smaller else f"{larger}"
            raise UsageError(
                f"global_batch_size={size} does not divide into {micro_batches} micro-batches",
                hint=f"use {near}, or another number of micro-batches: pytorch.init(micro_batches=…)",
                code="global-batch-does-not-divide",
            )
        return size // micro_batches

    def get_hparam(self, name: str) -> Any:
        if name not in self._hparams:
            raise UsageError(
                f"no hyperparameter {name!r}; there are {sorted(self._hparams)}",
                hint=f"pytorch.init(hparams={{{name!r}: …}}), or `hyperparameters` in the job file",
                code="hyperparameter-missing",
            )
        return self._hparams[name]

    def get_hparams(self) -> dict[str, Any]:
        return dict(self._hparams)

    def get_experiment_config(self) -> dict[str, Any]:
        return dict(self._exp_conf)

    def get_data_config(self) -> dict[str, Any]:
        return dict(self._exp_conf.get("data") or {})

    def get_trial_seed(self) -> int:
        return self.seed

    def get_experiment_id(self) -> int:
        trial = current_trial()
        return int(self._exp_conf.get("experiment_id") or 0) if trial is None else trial.experiment

    def get_trial_id(self) -> int:
        trial = current_trial()
        return int(self._exp_conf.get("trial_id") or 0) if trial is None else trial.trial_id

    def get_initial_batch(self) -> int:
        """Where this fit began: 0, or the batch of the checkpoint it resumed from."""
        return self._at("get_initial_batch").first

    def current_train_batch(self) -> int:
        """The batch in progress; between batches, the next one."""
        return self._at("current_train_batch").batch

    def current_train_epoch(self) -> int:
        return self._at("current_train_epoch").epoch

    def is_epoch_start(self) -> bool:
        """The batch in progress is the first one of an epoch."""
        return self._at("is_epoch_start").is_epoch_start

    def is_epoch_end(self) -> bool:
        """The batch in progress is the last one of an epoch."""
        return self._at("is_epoch_end").is_epoch_end

    def _at(self, what: str) -> TrainingPosition:
        if self.now is None:
            raise _before_training(what, "asked-before-training")
        return self.now()

    def set_stop_requested(self, stop_requested: bool) -> None:
        """End the training after the next step at the latest, on all workers; any worker may request it."""
        if not isinstance(stop_requested, bool):
            raise UsageError(
                f"set_stop_requested({stop_requested!r})", hint="True or False", code="stop-requested-not-a-bool"
            )
        self.wants_stop = stop_requested

    def get_stop_requested(self) -> bool:
        return self.wants_stop

    def set_profiler(self, *args: Any, **kwargs: Any) -> None:
        """Takes the arguments of torch.profiler.profile; TensorBoard shows the traces."""
        self.profiling = profiler_arguments(*args, **kwargs)

    def get_tensorboard_writer(self) -> Any:
        """A torch.utils.tensorboard.SummaryWriter for the run's folder; on workers other than the chief it writes
        nothing."""
        if self.writer is None:
            raise _before_training("get_tensorboard_writer", "writer-before-training")
        return self.writer()

    def set_enable_tensorboard_logging(self, enable_tensorboard_logging: bool) -> None:
        self.has_tensorboard = enable_tensorboard_logging


def _before_training(call: str, code: str) -> UsageError:
    return UsageError(f"{call}() before training", hint="call it in train_batch or in a callback", code=code)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPosition:
    """Where training is."""

    first: int  # batch of this fit
    batch: int
    epoch: int
    is_epoch_start: bool
    is_epoch_end: bool


class Experimental:
    """Determined's experimental calls."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self._context = context

    def use_amp(self, dtype: torch.dtype | None = None) -> None:
        """Automatic mixed precision: train_batch and evaluate_batch run under autocast, and losses are scaled."""
        context = self._context
        if context.scaler is not None:
            raise UsageError("use_amp() beside a wrapped scaler", hint="use one of them", code="amp-and-a-scaler")
        context.amp_scaler = context.wrap_scaler(GradScaler(context.device.type))
        context.is_amp = True

    def disable_dataset_reproducibility_checks(self) -> None:
        """Has no effect: torch's own DataLoader is always accepted."""

    def disable_auto_to_device(self) -> None:
        """train_batch and evaluate_batch get batches on the device where the loader leaves them."""
        self._context.moves_batches = False
