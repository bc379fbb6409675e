"""Door 1, the native loop: a few changed lines make a plain PyTorch loop elastic.

    trainer = everstep.ElasticTrainer(model, leaves=4)
    optimizer = trainer.prepare(optimizer)
    for leaf in trainer.leaves(steps=1000):
        with trainer.step():
            loss = loss_fn(model(inputs(leaf.step, leaf.index)), …)
            loss.backward()
            optimizer.step()

Built on the engine alone. A global batch is `leaves` micro-batches, whatever the number of workers; the body runs once
for each leaf that this worker owns; optimizer.step() acts with the last one, on the mean over all leaves."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from everstep.engine import current
from everstep.engine.step import Engine, Leaf
from everstep.errors import PeerLost, UsageError

T = TypeVar("T")


def init_process_group(backend: str | None = None, **torch_arguments: Any) -> None:
    """Form torch.distributed's default group as one that follows the world; takes torch's arguments.

    Who the workers are is decided by the coordinator, so `rank`, `world_size`, `init_method` and `store` are not
    needed and not used. Without `everstep run` the world is this process alone."""
    if backend not in (None, "gloo", "nccl", "cpu:gloo", "cpu:gloo,cuda:gloo", "cpu:gloo,cuda:nccl"):
        raise UsageError(f"backend={backend!r} cannot follow the world", hint='use backend="gloo" or "nccl"')
    current.follow_world(wants_nccl=backend is not None and backend.endswith("nccl"))


def reduce(value: float | torch.Tensor, *, weight: float = 1.0) -> float:
    """The weighted mean of a value over all workers, the same on all of them; a peer's death is no error."""
    return current.current().reduce(float(value), weight)


class DistributedDataParallel(nn.Module):
    """torch's wrapper in name and surface; the gradients are summed by the trainer's engine.

    Arguments that tune torch's reducer are accepted and have no effect: our buckets need none of them."""

    def __init__(
        self,
        module: nn.Module,
        device_ids: list[int] | None = None,
        output_device: int | None = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
    ) -> None:
        super().__init__()
        if process_group is not None:
            raise UsageError("a subgroup cannot follow the world", hint="leave process_group out")
        if device_ids is not None and len(device_ids) > 1:
            raise UsageError(
                f"device_ids={device_ids}: a worker trains on one device", hint="start a worker per device"
            )
        self.module = module
        self._engine: Engine | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._engine is None and self.training and torch.is_grad_enabled():
            raise UsageError(
                "this model is not bound to a trainer: its gradients would stay this worker's own",
                hint="pass it to everstep.ElasticTrainer(model) and train inside `with trainer.step():`",
            )
        return self.module(*args, **kwargs)

    def bind(self, engine: Engine) -> None:
        self._engine = engine

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A backward inside adds to the leaf's gradients without ending the leaf."""
        if self._engine is None:
            yield
        else:
            with self._engine.accumulating():
                yield


class ElasticTrainer:
    """Runs the loop's body for the right leaves, and applies each step once, for all workers or for none.

    leaves: micro-batches per global batch; defaults to the number of workers the job was started with.
    engine: for tests that need several in one process; by default the process's own.
    reduce: "exact" gives the same bits for every number of workers and every failure; "fast" sums as it comes."""

    def __init__(
        self,
        model: nn.Module,
        *,
        leaves: int | None = None,
        reduce: str = "exact",
        seed: int = 0,
        threads: int = 1,
        engine: Engine | None = None,
    ) -> None:
        self._engine = engine or current.current()
        num_leaves = leaves if leaves is not None else int(os.environ.get("WORLD_SIZE", "1"))
        self._engine.configure(num_leaves=num_leaves, reduce=reduce, seed=seed, threads=threads)
        self._optimizers: list[Optimizer] = []
        self._num_stepped = 0
        self._leaf: Leaf | None = None
        self.register("model", model)

    @property
    def num_steps(self) -> int:
        """Committed steps."""
        return self._engine.step

    @property
    def is_last_leaf(self) -> bool:
        """Inside a step: this is the worker's last leaf, the one with which optimizer.step() acts."""
        return self._engine.is_last_leaf

    @property
    def rank(self) -> int:
        return self._engine.world.rank

    @property
    def world_size(self) -> int:
        return self._engine.world.size

    def register(self, name: str, thing: T) -> T:
        """Make an object with state_dict and load_state_dict part of the state that newcomers receive."""
        if isinstance(thing, DistributedDataParallel):
            thing.bind(self._engine)
            self._engine.registry.add(name, thing.module)
        else:
            self._engine.registry.add(name, thing)
        return thing

    def prepare(self, optimizer: Any, scheduler: Any = None) -> Any:
        """Bind optimizers and schedulers (one or a list of each); returns what it was given."""
        for each in _listed(optimizer):
            self.register(f"optimizer{len(self._optimizers) or ''}", each)
            self._optimizers.append(each)
            self._wrap_optimizer(each)
        for number, each in enumerate(_listed(scheduler)):
            self.register(f"scheduler{number or ''}", each)
            self._wrap_scheduler(each)
        return optimizer if scheduler is None else (optimizer, scheduler)

    def leaves(self, steps: int) -> Iterator[Leaf]:
        """The leaves that this worker computes until `steps` steps are committed; then all workers end together."""
        while self._engine.step < steps:
            leaf = self._engine.next_leaf()
            if self._engine.step < steps:
                self._leaf = leaf
                yield leaf
        self._engine.conclude()

    def step(self, weight: float = 1.0) -> _Step:
        """One leaf. `weight`: its share in the mean, such as its number of samples or tokens."""
        return _Step(self, weight)

    def _begin(self, weight: float) -> None:
        if not self._optimizers:
            raise UsageError("step() before prepare()", hint="call optimizer = trainer.prepare(optimizer) first")
        leaf, self._leaf = self._leaf, None
        self._num_stepped = 0
        self._engine.begin_leaf(leaf or self._engine.next_leaf(), weight)

    def _end(self) -> None:
        engine = self._engine
        if engine.is_last_leaf and self._num_stepped == 0:
            raise UsageError(
                "the body of the step's last leaf ended without optimizer.step()",
                hint="call optimizer.step() in every pass of the body; it acts with the last leaf only",
            )
        if engine.is_last_leaf and self._num_stepped < len(self._optimizers):
            engine.commit()
        engine.end_leaf()
        engine.after_commit()

    def _wrap_optimizer(self, optimizer: Optimizer) -> None:
        original = optimizer.step

        def step(*args: Any, **kwargs: Any) -> Any:
            self._check_inside("optimizer.step()")
            if not self._engine.is_last_leaf:
                return None
            self._num_stepped += 1
            is_final = self._num_stepped == len(self._optimizers)
            return self._engine.update(lambda: original(*args, **kwargs), is_final=is_final)

        step.__dict__.update(getattr(original, "__dict__", {}))  # schedulers leave marks on what they wrapped
        optimizer.step = step  # type: ignore[method-assign]

    def _wrap_scheduler(self, scheduler: Any) -> None:
        """By a subclass: an attribute of the instance would become part of the scheduler's state_dict."""
        trainer, kind = self, type(scheduler)

        class Bound(kind):  # type: ignore[misc, valid-type]
            def step(self, *args: Any, **kwargs: Any) -> None:
                trainer._check_inside("scheduler.step()")
                if trainer._engine.is_last_leaf:
                    super().step(*args, **kwargs)

        Bound.__name__, Bound.__qualname__ = kind.__name__, kind.__qualname__
        scheduler.__class__ = Bound

    def _check_inside(self, what: str) -> None:
        if not self._engine.is_in_leaf:
            raise UsageError(
                f"{what} outside of a step would change this worker alone",
                hint="call it inside `with trainer.step():`",
            )


class _Step:
    """The context of one leaf. A lost peer is absorbed: the loop's next leaf is the right one."""

    def __init__(self, trainer: ElasticTrainer, weight: float) -> None:
        self._trainer = trainer
        self._weight = weight

    def __enter__(self) -> None:
        self._trainer._begin(self._weight)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            try:
                self._trainer._end()
            except PeerLost as lost:
                self._trainer._engine.abandon_leaf(lost)
            return False
        self._trainer._engine.abandon_leaf(error)
        return isinstance(error, PeerLost)


def _listed(things: Any) -> list[Any]:
    if things is None:
        return []
    return list(things) if isinstance(things, list | tuple) else [things]
