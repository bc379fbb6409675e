"""`PyTorchTrialContext`: where a trial wraps its models and optimizers, and asks where it is."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.optim import Optimizer

from everstep import env
from everstep.engine.step import Engine
from everstep.engine.world import ALONE
from everstep.errors import UsageError
from everstep.native import ElasticTrainer
from everstep.pytorch.gradient_aggregation import Gathered
from everstep.pytorch.profiling import ProfilerSettings, profiler_arguments
from everstep.pytorch.reducers import MetricReducer, Reducers
from everstep.pytorch.schedulers import LRScheduler, StepMode
from everstep.pytorch.to_device import ToDevice

log = logging.getLogger("everstep")

_DDP_ARGUMENTS = set(inspect.signature(TorchDDP.__init__).parameters) - {"self", "module"}


class PyTorchTrialContext:
    """Given by `everstep.pytorch.init()`. One trial, one context."""

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
        threads: int = 1,
        checkpoints: str | None = None,
    ) -> None:
        if type(aggregation_frequency) is not int or aggregation_frequency < 1:
            raise UsageError(f"aggregation_frequency={aggregation_frequency!r}", hint="a number of batches, 1 or more")
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.lr_schedulers: list[LRScheduler] = []
        self.scaler: GradScaler | None = None
        self.reducers = Reducers()
        self.gathered: dict[int, Gathered] = {}  # by id of the optimizer
        self.distributed = distributed
        self.device = device
        self.aggregation_frequency = aggregation_frequency
        self.has_tensorboard = enable_tensorboard_logging
        self.micro_batches = micro_batches
        self.seed, self.reduce, self.threads = seed, reduce, threads
        self.checkpoints = checkpoints
        self.experimental = Experimental(self)
        self.wants_stop = False
        self.to_device = ToDevice(device)
        self.moves_batches = True
        self.profiling: ProfilerSettings | None = None
        self.writer: Callable[[], Any] | None = None
        self.now: Callable[[], _Now] | None = None  # while training
        self.amp_scaler: GradScaler | None = None
        self.is_amp = False
        self.engine = engine
        self._hparams = dict(hparams)
        self._exp_conf = dict(exp_conf)
        self._trainer: ElasticTrainer | None = None  # once training has begun

    # --- wrapping -----------------------------------------------------------------------------------------

    def wrap_model(self, model: nn.Module, **ddp_arguments: Any) -> nn.Module:
        """Moves it to this worker's device; its gradients are summed over all workers. Returns the model itself.

        DDP's arguments are taken and need not be given: our buckets have no use for them."""
        self._check_early("wrap_model")
        if not isinstance(model, nn.Module):
            raise UsageError(f"wrap_model got a {type(model).__name__}", hint="give it a torch.nn.Module")
        if isinstance(model, TorchDDP):
            raise UsageError("wrap_model got torch's DistributedDataParallel", hint="give it the model itself")
        if unknown := sorted(set(ddp_arguments) - _DDP_ARGUMENTS):
            raise UsageError(f"wrap_model: unknown arguments {unknown}", hint=f"DDP has {sorted(_DDP_ARGUMENTS)}")
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
        """Its steps act once per global batch. Returns the optimizer itself."""
        self._check_early("wrap_optimizer")
        if not isinstance(optimizer, Optimizer):
            raise UsageError(f"wrap_optimizer got a {type(optimizer).__name__}", hint="give it a torch.optim.Optimizer")
        if backward_passes_per_step != 1 or fp16_compression:
            raise UsageError(
                "backward_passes_per_step and fp16_compression are Horovod's, which is not used",
                hint="several batches per optimizer step: pytorch.init(aggregation_frequency=…)",
            )
        if id(optimizer) not in self.gathered:
            self.optimizers.append(optimizer)
            self.gathered[id(optimizer)] = Gathered(optimizer, is_mean=average_aggregated_gradients is not False)
        return optimizer

    def wrap_lr_scheduler(self, lr_scheduler: Any, step_mode: StepMode, frequency: int = 1) -> Any:
        """The trainer steps it, as `step_mode` says. Returns the scheduler itself."""
        self._check_early("wrap_lr_scheduler")
        if not any(lr_scheduler is each.scheduler for each in self.lr_schedulers):
            self.lr_schedulers.append(LRScheduler(lr_scheduler, step_mode, frequency))
        return lr_scheduler

    def wrap_scaler(self, scaler: GradScaler) -> GradScaler:
        """Pass it on to step_optimizer, and call its update() after that. Returns the scaler itself."""
        self._check_early("wrap_scaler")
        if self.scaler is not None and self.scaler is not scaler:
            raise UsageError("a second scaler", hint="one GradScaler serves all optimizers of a trial")
        self.scaler = scaler
        return scaler

    def wrap_reducer(
        self, reducer: Any, name: str | None = None, for_training: bool = True, for_validation: bool = True
    ) -> MetricReducer:
        return self.reducers.wrap(reducer, name, for_training=for_training, for_validation=for_validation)

    def configure_apex_amp(self, *args: Any, **kwargs: Any) -> Any:
        raise UsageError("apex is not supported", hint="use context.experimental.use_amp()")

    def _check_early(self, what: str) -> None:
        if self._trainer is not None:
            raise UsageError(f"{what} after training has begun", hint="wrap everything before Trainer.fit()")

    def attach(self, trainer: ElasticTrainer) -> None:
        """Training begins: what was wrapped becomes part of the state of all workers."""
        self._trainer = trainer
        trainer.gate.is_gathering = lambda: not self._is_stepping
        for number, model in enumerate(self.models[1:], start=1):
            trainer.register(f"model{number}", model)
        for number, optimizer in enumerate(self.optimizers):
            trainer.register(f"optimizer{number}", optimizer)
            trainer.gate.bind_optimizer(optimizer)
            if self.aggregation_frequency > 1:
                trainer.register(f"gathered{number}", self.gathered[id(optimizer)])
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
        """Call it in every train_batch; it acts with the batch's last micro-batch, in every aggregation_frequency-th
        batch.
        `clip_grads` gets the parameters, whose gradients are the mean over all workers by then.

        Every batch's gradients begin at zero; `auto_zero_grads=False` keeps nothing for the next one."""
        trainer = self._trainer
        if trainer is None:
            raise UsageError("step_optimizer() before training", hint="call it in train_batch, under Trainer.fit()")
        if id(optimizer) not in self.gathered:
            raise UsageError("step_optimizer got an optimizer that was not wrapped", hint="context.wrap_optimizer(it)")
        if self.aggregation_frequency > 1 and not auto_zero_grads:
            raise UsageError(
                f"auto_zero_grads=False with aggregation_frequency={self.aggregation_frequency}",
                hint="leave auto_zero_grads out: gathered gradients are kept apart",
            )
        scaler = self.amp_scaler if scaler is None else scaler
        if scaler is not None and scaler not in (self.scaler, self.amp_scaler):
            raise UsageError("step_optimizer got a scaler that was not wrapped", hint="context.wrap_scaler(it)")
        if not trainer.gate.is_open("step_optimizer()") or not self.engine.await_sum():
            return
        gathered = self.gathered[id(optimizer)]
        if self.aggregation_frequency > 1:
            if not self._is_stepping:
                trainer.gate.act(gathered.add)
                return
            gathered.give()
        if clip_grads is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            clip_grads(iter(gathered.parameters))
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
        gathered.clear()

    @property
    def _is_stepping(self) -> bool:
        """Optimizers step with the batch in progress."""
        return (self._batch_in_progress + 1) % self.aggregation_frequency == 0

    @property
    def _batch_in_progress(self) -> int:
        now = self.now
        assert now is not None
        return now().batch

    @contextlib.contextmanager
    def autocast(self, dtype: torch.dtype | None = None, enabled: bool = True) -> Iterator[None]:
        """torch.autocast for this worker's device."""
        with torch.autocast(self.device.type, dtype=dtype, enabled=enabled):
            yield

    def prepare(self, batch: Any) -> Any:
        return self.to_device(batch) if self.moves_batches else batch

    def after_train_batch(self) -> None:
        """At the end of a micro-batch's body: automatic mixed precision has to be told of the end of the batch."""
        if self.amp_scaler is not None:
            self.amp_scaler.update()

    @property
    def is_chief(self) -> bool:
        """The one worker of the moment that writes for all; never a newcomer that the others have not let in yet."""
        return self.engine.world.rank == 0 and self.engine.world is not ALONE

    def agree(self, value: Any) -> Any:
        """In a world that does not change: what the first worker says. Elsewhere each must find the same by itself."""
        said = self.engine.gather(value) if env.coordinator_url() is None else None
        return value if said is None else said[0]

    # --- where we are -------------------------------------------------------------------------------------

    def get_global_batch_size(self) -> int:
        size = self.get_hparam("global_batch_size")
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"global_batch_size={size!r}", hint="a whole number of samples, 1 or more")
        return size

    def get_per_slot_batch_size(self) -> int:
        """Samples of a micro-batch: the global batch over the number of micro-batches, whatever the number of
        workers."""
        size, micro_batches = self.get_global_batch_size(), self.micro_batches
        if size % micro_batches:
            smaller, larger = size // micro_batches * micro_batches, (size // micro_batches + 1) * micro_batches
            near = f"{smaller} or {larger}" if smaller else f"{larger}"
            raise UsageError(
                f"global_batch_size={size} is not a multiple of the {micro_batches} micro-batches of a batch",
                hint=f"use {near}, or another number of micro-batches: pytorch.init(micro_batches=…)",
            )
        return size // micro_batches

    def get_hparam(self, name: str) -> Any:
        if name not in self._hparams:
            raise UsageError(
                f"no hyperparameter {name!r}; there are {sorted(self._hparams)}",
                hint=f"pytorch.init(hparams={{{name!r}: …}}), or `hyperparameters` in the job file",
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
        return int(self._exp_conf.get("experiment_id") or 0)

    def get_trial_id(self) -> int:
        return int(self._exp_conf.get("trial_id") or 0)

    def get_initial_batch(self) -> int:
        """Where this fit began: 0, or the batch of the checkpoint that it goes on from."""
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

    def _at(self, what: str) -> _Now:
        if self.now is None:
            raise UsageError(f"{what}() before training has begun", hint="call it in train_batch or in a callback")
        return self.now()

    def set_stop_requested(self, stop_requested: bool) -> None:
        """End the training after the next step at the latest, on all workers; any one of them may ask."""
        if not isinstance(stop_requested, bool):
            raise UsageError(f"set_stop_requested({stop_requested!r})", hint="give True or False")
        self.wants_stop = stop_requested

    def get_stop_requested(self) -> bool:
        return self.wants_stop

    def set_profiler(self, *args: Any, **kwargs: Any) -> None:
        """Takes the arguments of torch.profiler.profile; its traces are shown by TensorBoard."""
        self.profiling = profiler_arguments(*args, **kwargs)

    def get_tensorboard_writer(self) -> Any:
        """A torch.utils.tensorboard.SummaryWriter in the run's folder; on workers other than the chief, of nothing."""
        if self.writer is None:
            raise UsageError("get_tensorboard_writer() before training", hint="ask in train_batch or in a callback")
        return self.writer()

    def set_enable_tensorboard_logging(self, enable_tensorboard_logging: bool) -> None:
        self.has_tensorboard = enable_tensorboard_logging


class _Now:
    """Where training is."""

    def __init__(self, *, first: int, batch: int, epoch: int, is_epoch_start: bool, is_epoch_end: bool) -> None:
        self.first, self.batch, self.epoch = first, batch, epoch
        self.is_epoch_start, self.is_epoch_end = is_epoch_start, is_epoch_end


Now = _Now


class Experimental:
    """What is new, or for old scripts."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self._context = context

    def use_amp(self, dtype: torch.dtype | None = None) -> None:
        """Automatic mixed precision: train_batch and evaluate_batch run under autocast, losses are scaled."""
        context = self._context
        if context.scaler is not None:
            raise UsageError("use_amp() beside a wrapped scaler", hint="use one of them")
        context.amp_scaler = context.wrap_scaler(GradScaler(context.device.type))
        context.is_amp = True

    def disable_dataset_reproducibility_checks(self) -> None:
        """torch's own DataLoader is welcome here anyway."""

    def disable_auto_to_device(self) -> None:
        """train_batch and evaluate_batch get batches as the loader gives them."""
        self._context.moves_batches = False
