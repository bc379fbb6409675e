"""torch's DataLoader, following the plan: every sample exactly once per epoch, whichever workers come and go.

Each batch is one micro-batch that this worker has to compute next. The position in the data advances with the commit
of a step, on all workers, and travels with the state; so after a regroup the next batch is the right one. Bound to a
trainer before it is iterated. A loader of torch's own can be made one of these in place, because the loop holds that
object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils import data

from everstep.data.epoch_order import BatchKey, EpochOrder, Schedule
from everstep.data.position import Position
from everstep.data.randomness import KeyedDataset, as_it_is, sample_seed
from everstep.data.reader import InProcessSource, MicroBatchReader, Requests
from everstep.data.sampler import ElasticDistributedSampler
from everstep.engine.plan import MicroBatch
from everstep.engine.seeds import seed_everything
from everstep.engine.step import Engine
from everstep.errors import UsageError

T = TypeVar("T")


class DataLoader(data.DataLoader[Any]):
    """Takes torch's arguments for map-style datasets. `seed`: of the shuffling and of random transforms.

    len() is the number of steps in an epoch, for every number of workers. `shuffle` and `seed` are taken from a
    DistributedSampler if one is given; its rank and number of replicas have no meaning here. `drop_last` drops a last
    global batch that is not full; without it, that one is spread over the micro-batches."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int = 0,
    ) -> None:
        _check(dataset, batch_size, batch_sampler, in_order)
        super().__init__(
            dataset, batch_size, shuffle, sampler, None, num_workers, collate_fn, pin_memory, drop_last, timeout,
            worker_init_fn, multiprocessing_context, generator, prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers, pin_memory_device=pin_memory_device,
        )  # fmt: skip
        self._follow_sampler(seed)

    @classmethod
    def adopt(cls, loader: data.DataLoader[Any], seed: int = 0) -> DataLoader:
        """Make a loader of torch's one of these, in place."""
        if isinstance(loader, cls):
            return loader
        if type(loader) is not data.DataLoader:
            raise UsageError(
                f"the trainer cannot follow a {type(loader).__module__}.{type(loader).__qualname__}",
                hint="give it an everstep.DataLoader, or torch's DataLoader with a map-style dataset",
                code="loader-kind-unknown",
            )
        is_own = type(loader.batch_sampler) is not data.BatchSampler
        _check(loader.dataset, loader.batch_size, loader.batch_sampler if is_own else None, loader.in_order)
        _shuffling(loader.sampler, seed)  # may refuse it, and then it must stay what it was
        loader.__class__ = cls
        assert isinstance(loader, cls)
        loader._follow_sampler(seed)
        return loader

    def _follow_sampler(self, seed: int) -> None:
        self._engine: Engine | None = None
        self._order: EpochOrder | None = None
        self._source: Iterable[Any] | None = None
        self._loop = _Iteration()
        self._wanted_epoch: int | None = None  # by set_epoch
        self._is_resumed = False  # in a later epoch than the first
        self._is_shuffled, self._seed = _shuffling(self.sampler, seed)
        self.position = Position(
            size=len(self.dataset),  # type: ignore[arg-type]
            seed=self._seed,
            shuffle=self._is_shuffled,
        )
        self._next_epoch = 0  # of an iteration without set_epoch
        if isinstance(self.sampler, ElasticDistributedSampler):
            self.load_state_dict(self.sampler.state_dict())
            self.set_epoch(self.position.epoch)
            self.sampler.bind(self)
        elif isinstance(self.sampler, data.DistributedSampler):
            self.sampler.set_epoch = self.set_epoch  # type: ignore[method-assign]

    # --- the trainer's side -------------------------------------------------------------------------------

    def bind(self, engine: Engine, micro_batches: int) -> None:
        """Follow this engine's plan from now on."""
        assert self.batch_size is not None
        size = self.position.size
        order = EpochOrder(
            size=size,
            batch_size=self.batch_size,
            micro_batches=micro_batches,
            shuffle=self._is_shuffled,
            seed=self._seed,
            drop_last=self.drop_last,
        )
        if not order.num_batches:
            raise UsageError(
                f"drop_last=True drops all {size} samples: a global batch is batch_size={self.batch_size} × "
                f"{micro_batches} micro-batches = {order.global_batch}",
                hint="use a smaller batch_size, fewer micro-batches, or drop_last=False",
                code="drop-last-drops-all",
            )
        self._engine, self._order = engine, order
        self._requests = Requests(order)
        self._source = self._make_source(self._requests)
        self.position.order = order

    def leave_epoch(self, epoch: int) -> None:
        """The loop is done with it, perhaps early."""
        self._go_to(epoch + 1)

    def _go_to(self, epoch: int) -> None:
        assert self._engine is not None
        if self.position.advance_to(epoch):
            self._engine.forget_plan()  # micro-batches of the step that was left are not those of the step to come

    def take_offered(self) -> tuple[MicroBatch, float] | None:
        """The micro-batch whose batch the loop holds, and its weight: 1 for a full one."""
        micro_batch, self._loop.offered = self._loop.offered, None
        if micro_batch is None:
            return None
        assert self._order is not None
        return micro_batch, self.num_samples(micro_batch) / self._order.batch_size

    def num_samples(self, micro_batch: MicroBatch) -> int:
        """Of a micro-batch of the step to come."""
        assert self._order is not None
        return len(self._order.span(self.position.samples, micro_batch.index))

    def _make_source(self, requests: Requests) -> Iterable[Any]:
        keyed = KeyedDataset(self.dataset, self._seed, self.collate_fn)
        if not self.num_workers and not self.pin_memory:
            return InProcessSource(keyed, requests)
        return data.DataLoader(
            keyed,
            batch_sampler=requests,  # type: ignore[arg-type]
            num_workers=self.num_workers,
            collate_fn=as_it_is,
            pin_memory=self.pin_memory,
            timeout=self.timeout,
            worker_init_fn=WorkerInit(keyed, self.worker_init_fn) if self.num_workers else None,
            multiprocessing_context=self.multiprocessing_context,
            generator=self.generator,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
            pin_memory_device=self.pin_memory_device,
        )

    # --- the user's side ----------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """The next iteration goes over this epoch: what is left of it, or nothing if it is done already."""
        if epoch < 0:
            raise UsageError(f"epoch={epoch} is negative", hint="count epochs from 0", code="epoch-negative")
        self._wanted_epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """The position in the data that the last committed step has reached."""
        return self.position.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from there. An empty state is a fresh start."""
        self.position.load_state_dict(state)
        self._next_epoch, self._wanted_epoch = self.position.epoch, None
        self._is_resumed = self.position.epoch > 0

    def __len__(self) -> int:
        if self._order is None:
            raise UsageError(
                "how many steps an epoch has is not known before the number of micro-batches is",
                hint="make the trainer first: everstep.ElasticTrainer(model, loader)",
                code="loader-length-unknown",
            )
        return self._order.num_batches

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        engine, order, source = self._engine, self._order, self._source
        if engine is None or order is None or source is None:
            raise UsageError(
                "this loader is not bound to a trainer, so it does not know which batches are this worker's",
                hint="pass it on: everstep.ElasticTrainer(model, loader); to evaluate, use torch's own DataLoader",
                code="loader-not-bound",
            )
        if self._wanted_epoch is None and self._is_resumed:
            raise UsageError(
                f"training was resumed in epoch {self.position.epoch}; which epoch this loop means is not known",
                hint="call loader.set_epoch(epoch) before each epoch, or use `for epoch in trainer.epochs(n):`",
                code="epoch-unknown-after-resume",
            )
        epoch = self._next_epoch if self._wanted_epoch is None else self._wanted_epoch
        self._next_epoch, self._wanted_epoch, self._loop = epoch + 1, None, _Iteration()
        if not engine.rehearsal.is_due:
            self._go_to(epoch)
        return self._batches(engine, order, MicroBatchReader(source, self._requests), epoch)

    def _batches(self, engine: Engine, order: EpochOrder, reader: MicroBatchReader, epoch: int) -> Iterator[Any]:
        position, loop = self.position, self._loop
        engine.enter_loop()
        position.is_in_one = True
        try:
            while position.epoch == epoch or engine.rehearsal.is_due:
                loop.check_computed()
                micro_batch = engine.next_micro_batch()  # may regroup, and bring the state of a peer that is further
                if position.epoch != epoch and not micro_batch.is_rehearsal:
                    break
                key = BatchKey(position.epoch, position.samples, micro_batch.index)
                batch = reader.get(key, engine.dealt, lambda: self._schedule(engine, order))
                seed_everything(
                    sample_seed(self._seed, key.epoch, -1 - order.span(key.position, key.micro_batch).start)
                )
                loop.offered = engine.offered = micro_batch
                yield batch
        finally:
            engine.leave_loop()
            position.is_in_one = False
            position.last_iterated = epoch

    def _schedule(self, engine: Engine, order: EpochOrder) -> Schedule:
        position = self.position
        return Schedule(order=order, epoch=position.epoch, position=position.samples, todo=engine.todo, run=engine.run)


@dataclass(kw_only=True, slots=True)
class _Iteration:
    """One iteration of the script's over the loader."""

    offered: MicroBatch | None = None  # whose batch it was given and has not computed yet

    def check_computed(self) -> None:
        if (micro_batch := self.offered) is not None:
            raise UsageError(
                f"micro-batch {micro_batch.index} of step {micro_batch.step} was read but not trained on",
                hint="enter `with trainer.step():` for every batch; step(weight=0) leaves a batch out",
                code="batch-not-trained-on",
            )


class WorkerInit:
    """Runs in each loader process first."""

    def __init__(self, keyed: KeyedDataset, inner: Callable[[int], None] | None) -> None:
        self._keyed = keyed
        self._inner = inner

    def __call__(self, number: int) -> None:
        self._keyed.enter_worker()
        if self._inner is not None:
            self._inner(number)


def _check(dataset: Any, batch_size: int | None, batch_sampler: Any, in_order: bool) -> None:
    kind = type(dataset).__qualname__
    if isinstance(dataset, data.IterableDataset):
        raise UsageError(
            f"{kind} is an iterable dataset: its samples cannot be told apart",
            hint="use a map-style dataset (__len__ and __getitem__), or lease its records: everstep.RecordIndexService",
            code="dataset-iterable",
        )
    if not hasattr(dataset, "__len__"):
        raise UsageError(f"{kind} has no __len__: an epoch needs an end", hint="add one", code="dataset-without-length")
    if len(dataset) < 1:
        raise UsageError(f"{kind} has {len(dataset)} samples", hint="train on at least one", code="dataset-empty")
    if batch_sampler is not None:
        raise UsageError(
            "a batch_sampler cannot follow the plan", hint="use batch_size and shuffle", code="batch-sampler-given"
        )
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise UsageError(
            f"batch_size={batch_size} is less than 1", hint="use 1 or more", code="loader-batch-size-not-positive"
        )
    if not in_order:
        raise UsageError(
            "in_order=False cannot be followed by a plan", hint="leave in_order out", code="in-order-false"
        )


def _shuffling(sampler: Any, seed: int) -> tuple[bool, int]:
    """Whether the sampler that torch's loader has shuffles an epoch, and its seed."""
    if isinstance(sampler, data.DistributedSampler):
        return sampler.shuffle, sampler.seed
    if type(sampler) is data.SequentialSampler:
        return False, seed
    if type(sampler) is data.RandomSampler and not sampler.replacement and sampler._num_samples is None:
        return True, seed
    raise UsageError(
        f"{type(sampler).__qualname__} decides the order of the samples in a way that no other worker can repeat",
        hint="use shuffle=True, or everstep.ElasticDistributedSampler(dataset)",
        code="sampler-not-repeatable",
    )
