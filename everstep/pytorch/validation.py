"""Validation: the batches shared out over the workers, their results put together in the order of the data.

So the metrics are the same for every number of workers, and after a loss only the lost worker's batches are evaluated
again. Randomness is set for each batch by itself, and that of training by each micro-batch: neither touches the
other's. Nor does it change the models' buffers, which would differ from worker to worker."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import data

from everstep.data.loader import WorkerInit
from everstep.data.randomness import KeyedDataset, as_it_is, sample_seed
from everstep.engine.seeds import seed_everything
from everstep.errors import UsageError
from everstep.pytorch.plain_data import listed, number, pack, unpack
from everstep.pytorch.reducers import Reducers, check_reducers, reduce_metric
from everstep.pytorch.trial import PyTorchTrial, overrides

_SEED = -2  # no epoch of training has this number


class Overtaken(Exception):
    """The others have gone on without this worker, and it was brought to a later step meanwhile."""


class Sharing(NamedTuple):
    """How the workers share and tell."""

    place: Callable[[], tuple[int, int]]  # this worker's, and the number of workers
    gather: Callable[[Any], list[Any]]


class Outcome(NamedTuple):
    metrics: dict[str, Any]
    outputs: list[Any]  # what each batch gave, in the order of the data


class Validation:
    """Of one trial, over its validation loader."""

    def __init__(
        self, trial: PyTorchTrial, loader: Any, reducers: Reducers, prepare: Callable[[Any], Any], seed: int
    ) -> None:
        self._trial, self._reducers = trial, reducers
        self._prepare, self._seed = prepare, seed
        self._takes_index = len(inspect.signature(trial.evaluate_batch).parameters) > 1
        self._batches = _Batches(loader, seed)

    def run(self, models: Sequence[nn.Module], sharing: Sharing, max_batches: int | None = None) -> Outcome:
        were_training = [(module, module.training) for model in models for module in model.modules()]
        buffers = [(buffer, buffer.clone()) for model in models for buffer in model.buffers()]
        for model in models:
            model.eval()
        try:
            with torch.no_grad():
                if overrides(self._trial, "evaluate_full_dataset"):
                    return self._full(sharing)
                return self._shared(sharing, max_batches)
        except Overtaken:
            buffers = []  # the others' have been put in their place
            raise
        finally:
            for module, was_training in were_training:
                module.training = was_training
            for buffer, before in buffers:
                buffer.copy_(before)

    def _full(self, sharing: Sharing) -> Outcome:
        """By the chief; if it is lost, by the next one."""
        while True:
            self._reducers.reset()
            packed = None
            if sharing.place()[0] == 0:
                seed_everything(sample_seed(self._seed, _SEED, 0))
                result = self._trial.evaluate_full_dataset(self._batches.whole())
                packed = [pack(_checked(result, "evaluate_full_dataset")), self._reducers.slot(is_training=False)]
            found = [said for said in sharing.gather(packed) if said is not None]
            if found:
                metrics, slots = unpack(found[0][0]), found[0][1]
                metrics = {name: _as_number(name, value) for name, value in metrics.items()}
                return Outcome(metrics | self._reducers.combine([slots], is_training=False), [])

    def _shared(self, sharing: Sharing, max_batches: int | None) -> Outcome:
        known: dict[int, Any] = {}
        total = self._batches.number
        if max_batches is not None:
            total = max_batches if total is None else min(total, max_batches)
        while True:
            place, size = sharing.place()
            results = dict(self._evaluate(known, place, size, total))
            end = self._batches.number if total is None else total
            for said_end, said in sharing.gather([end, results]):
                total = said_end if total is None else total
                known |= {int(index): result for index, result in said.items()}
            if total is not None and len(known) >= total:
                break
        if not known:
            raise UsageError("the validation loader gave no batch", hint="validate on at least one sample")
        return self._combine([known[index] for index in sorted(known)])

    def _evaluate(
        self, known: dict[int, Any], place: int, size: int, total: int | None
    ) -> Iterator[tuple[str, list[Any]]]:
        """The results of this worker's part of what is not known yet."""
        missing = -1
        wanted: list[int] = []
        if total is not None:
            wanted = [index for index in range(total) if index not in known][place::size]
        for index, batch, samples in self._batches.take(wanted if total is not None else None):
            if total is None:  # of an iterable dataset: all go through all of it
                missing += index not in known
                if index in known or missing % size != place:
                    continue
            seed_everything(sample_seed(self._seed, _SEED, index))
            self._reducers.reset()
            batch = self._prepare(batch)
            samples = self._trial.get_batch_length(batch) if samples is None else samples
            args = (batch, index) if self._takes_index else (batch,)
            metrics = _checked(self._trial.evaluate_batch(*args), "evaluate_batch")
            plain = {name: listed(number(name, value)) for name, value in metrics.items()}
            yield str(index), [samples, plain, self._reducers.slot(is_training=False)]

    def _combine(self, results: list[Any]) -> Outcome:
        names = set(results[0][1])
        for index, (_, metrics, _) in enumerate(results):
            if set(metrics) != names:
                raise UsageError(
                    f"evaluate_batch gave {sorted(metrics)} for batch {index}, {sorted(names)} for batch 0",
                    hint="return the same metrics for every batch",
                )
        reducers = check_reducers(self._trial.evaluation_reducer(), names)
        combined: dict[str, Any] = {
            name: reduce_metric(reducers[name], [(samples, metrics[name]) for samples, metrics, _ in results])
            for name in results[0][1]
        }
        combined |= self._reducers.combine([slots for *_, slots in results], is_training=False)
        return Outcome(combined, [metrics for _, metrics, _ in results])


class _Batches:
    """Of a loader of torch's or ours: any of them by index, unless its dataset can only be gone through."""

    def __init__(self, loader: Any, seed: int) -> None:
        if not isinstance(loader, data.DataLoader):
            raise UsageError(
                f"build_validation_data_loader returned a {type(loader).__name__}", hint="return a DataLoader"
            )
        self._loader, self._seed = loader, seed
        self._is_map = not isinstance(loader.dataset, data.IterableDataset) and loader.batch_sampler is not None
        self.number: int | None = None if not self._is_map else len(self._samples())

    def whole(self) -> Any:
        """A loader of all samples, as evaluate_full_dataset gets it."""
        samples = self._samples() if self._is_map else []
        return self._remade(samples, list(range(len(samples)))) if self._is_map else self._loader

    def take(self, wanted: list[int] | None) -> Iterator[tuple[int, Any, int | None]]:
        """Those of `wanted`, or all: index, batch, number of samples where it is known."""
        if wanted is None or not self._is_map:
            yield from self._pass_through(wanted)
            return
        samples = self._samples()
        for index, batch in zip(wanted, self._remade(samples, wanted), strict=True):
            yield index, batch, len(samples[index])

    def _pass_through(self, wanted: list[int] | None) -> Iterator[tuple[int, Any, int | None]]:
        """What is random in an iterable dataset is set before each batch: what was evaluated since does not matter."""
        seed_everything(sample_seed(self._seed, _SEED, -1))
        batches, index = iter(self._loader), 0
        while True:
            seed_everything(sample_seed(self._seed, _SEED, -2 - index))
            try:
                batch = next(batches)
            except StopIteration:
                break
            if wanted is None or index in wanted:
                yield index, batch, None
            index += 1
        self.number = index

    def _samples(self) -> list[list[int]]:
        """Of each batch. A sampler that is random, or one of many workers' own, stands for all samples in order: who
        evaluates which is decided here."""
        loader, sampler = self._loader, self._loader.batch_sampler
        is_ours = type(loader.sampler) in (data.SequentialSampler, data.RandomSampler)
        if type(sampler) is data.BatchSampler and (is_ours or isinstance(loader.sampler, data.DistributedSampler)):
            size, batch = len(loader.dataset), sampler.batch_size  # type: ignore[arg-type]
            batches = [list(range(start, min(start + batch, size))) for start in range(0, size, batch)]
            return batches[:-1] if sampler.drop_last and size % batch else batches
        seed_everything(0)  # the same for all workers
        return [list(indices) for indices in sampler or ()]

    def _remade(self, samples: list[list[int]], wanted: list[int]) -> Any:
        """The same loader over these batches. What is random in a sample depends on its place alone."""
        old = self._loader
        if not wanted:
            return []
        starts = [0, *accumulate(len(indices) for indices in samples)]
        keyed = KeyedDataset(old.dataset, self._seed, old.collate_fn)
        num_workers = min(old.num_workers, len(wanted))
        return data.DataLoader(
            keyed,
            batch_sampler=[(samples[index], _SEED, starts[index]) for index in wanted],  # type: ignore[misc]
            num_workers=num_workers,
            collate_fn=as_it_is,
            pin_memory=old.pin_memory,
            timeout=old.timeout,
            worker_init_fn=WorkerInit(keyed, old.worker_init_fn) if num_workers else None,
            multiprocessing_context=old.multiprocessing_context if num_workers else None,
            generator=old.generator,
            prefetch_factor=old.prefetch_factor if num_workers else None,
        )


def _checked(result: Any, method: str) -> dict[str, Any]:
    if not isinstance(result, dict) or not all(isinstance(name, str) for name in result):
        raise UsageError(f"{method} returned a {type(result).__name__}", hint='return a dict: {"loss": loss}')
    return result


def _as_number(name: str, value: Any) -> Any:
    try:
        return number(name, value)
    except UsageError:
        return value  # of evaluate_full_dataset, anything plain
