"""Validation: the batches are divided among the workers, the results combined in the order of the data.

So the metrics are the same for every number of workers, and when a worker is lost, only its batches are evaluated
again. Random generators are seeded for each validation batch, and in training for each micro-batch: neither affects the
other. The models' buffers are restored, since they would differ from worker to worker."""

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
from everstep.engine.arguments import check_kind
from everstep.engine.seeds import seed_everything
from everstep.errors import UsageError
from everstep.pytorch.reducers import Reducers, check_reducers, listed, number, pack, reduce_metric, unpack
from everstep.pytorch.trial import PyTorchTrial, overrides

_SEED = -2  # not an epoch of training


class Overtaken(Exception):
    """The others have continued without this worker, and it has received the state of a later step."""


class ValidationResult(NamedTuple):
    metrics: dict[str, Any]
    outputs: list[Any]  # of each batch, in the order of the data


RankAndSize = Callable[[], tuple[int, int]]  # this worker's rank, and the number of workers
Gather = Callable[[Any], list[Any]]  # the values of all workers


class Validation:
    """Of one trial, over its validation loader."""

    def __init__(
        self, trial: PyTorchTrial, loader: Any, reducers: Reducers, prepare: Callable[[Any], Any], seed: int
    ) -> None:
        self._trial, self._reducers = trial, reducers
        self._prepare, self._seed = prepare, seed
        self._takes_index = len(inspect.signature(trial.evaluate_batch).parameters) > 1
        self._batches = _ValidationBatches(loader, seed)

    def run(
        self, models: Sequence[nn.Module], place: RankAndSize, gather: Gather, max_batches: int | None = None
    ) -> ValidationResult:
        were_training = [(module, module.training) for model in models for module in model.modules()]
        buffers = [(buffer, buffer.clone()) for model in models for buffer in model.buffers()]
        for model in models:
            model.eval()
        try:
            with torch.no_grad():
                if overrides(self._trial, "evaluate_full_dataset"):
                    return self._full(place, gather)
                return self._shared(place, gather, max_batches)
        except Overtaken:
            buffers = []  # replaced by the others'
            raise
        finally:
            for module, was_training in were_training:
                module.training = was_training
            for buffer, before in buffers:
                buffer.copy_(before)

    def _full(self, place: RankAndSize, gather: Gather) -> ValidationResult:
        """By the chief; if it is lost, by the next one."""
        while True:
            self._reducers.reset()
            packed = None
            if place()[0] == 0:
                seed_everything(sample_seed(self._seed, _SEED, 0))
                result = self._trial.evaluate_full_dataset(self._batches.whole())
                reduced = self._reducers.reduce_part(is_training=False)
                packed = [pack(_checked(result, "evaluate_full_dataset")), reduced]
            found = [each for each in gather(packed) if each is not None]
            if found:
                metrics = {name: _as_number(name, value) for name, value in unpack(found[0][0]).items()}
                return ValidationResult(metrics | self._reducers.combine([found[0][1]], is_training=False), [])

    def _shared(self, place: RankAndSize, gather: Gather, max_batches: int | None) -> ValidationResult:
        known: dict[int, Any] = {}
        total = self._batches.number
        if max_batches is not None:
            total = max_batches if total is None else min(total, max_batches)
        while True:
            results = dict(self._evaluate(known, *place(), total))
            end = self._batches.number if total is None else total
            for their_end, theirs in gather([end, results]):
                total = their_end if total is None else total
                known |= {int(index): result for index, result in theirs.items()}
            if total is not None and len(known) >= total:
                break
        if not known:
            raise UsageError(
                "no batches to validate on", hint="validate on a sample or more", code="validation-without-batches"
            )
        return self._combine([known[index] for index in sorted(known)])

    def _evaluate(
        self, known: dict[int, Any], rank: int, size: int, total: int | None
    ) -> Iterator[tuple[str, list[Any]]]:
        """The results of this worker's share of the batches that are not known yet."""
        missing = -1
        wanted: list[int] = []
        if total is not None:
            wanted = [index for index in range(total) if index not in known][rank::size]
        for index, batch, samples in self._batches.take(wanted if total is not None else None):
            if total is None:  # an iterable dataset: every worker reads all of it
                missing += index not in known
                if index in known or missing % size != rank:
                    continue
            seed_everything(sample_seed(self._seed, _SEED, index))
            self._reducers.reset()
            batch = self._prepare(batch)
            samples = self._trial.get_batch_length(batch) if samples is None else samples
            args = (batch, index) if self._takes_index else (batch,)
            metrics = _checked(self._trial.evaluate_batch(*args), "evaluate_batch")
            plain = {name: listed(number(name, value)) for name, value in metrics.items()}
            yield str(index), [samples, plain, self._reducers.reduce_part(is_training=False)]

    def _combine(self, results: list[Any]) -> ValidationResult:
        names = set(results[0][1])
        for index, (_, metrics, _) in enumerate(results):
            if set(metrics) != names:
                raise UsageError(
                    f"evaluate_batch returned {sorted(metrics)} for batch {index}, {sorted(names)} for batch 0",
                    hint="return the same metrics for every batch",
                    code="validation-metrics-differ",
                )
        reducers = check_reducers(self._trial.evaluation_reducer(), names)
        combined: dict[str, Any] = {
            name: reduce_metric(reducers[name], [(samples, metrics[name]) for samples, metrics, _ in results])
            for name in results[0][1]
        }
        combined |= self._reducers.combine([reduced for *_, reduced in results], is_training=False)
        return ValidationResult(combined, [metrics for _, metrics, _ in results])


class _ValidationBatches:
    """The batches of a DataLoader: any of them by index, unless its dataset is iterable."""

    def __init__(self, loader: Any, seed: int) -> None:
        call, hint = "build_validation_data_loader", "return a DataLoader"
        check_kind(call, loader, data.DataLoader, hint=hint, code="validation-loader-unknown")
        self._loader, self._seed = loader, seed
        self._is_map = not isinstance(loader.dataset, data.IterableDataset) and loader.batch_sampler is not None
        self.number: int | None = None if not self._is_map else len(self._samples())

    def whole(self) -> Any:
        """A loader of all samples, for evaluate_full_dataset."""
        samples = self._samples() if self._is_map else []
        return self._remade(samples, list(range(len(samples)))) if self._is_map else self._loader

    def take(self, wanted: list[int] | None) -> Iterator[tuple[int, Any, int | None]]:
        """The `wanted` batches, or all: index, batch, and number of samples where it is known."""
        if wanted is None or not self._is_map:
            yield from self._pass_through(wanted)
            return
        samples = self._samples()
        for index, batch in zip(wanted, self._remade(samples, wanted), strict=True):
            yield index, batch, len(samples[index])

    def _pass_through(self, wanted: list[int] | None) -> Iterator[tuple[int, Any, int | None]]:
        """An iterable dataset is seeded before each batch, so evaluation in between does not affect it."""
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
        """The samples of each batch. A random or distributed sampler is replaced by all samples in order: this class
        divides them among the workers."""
        loader, sampler = self._loader, self._loader.batch_sampler
        is_ours = type(loader.sampler) in (data.SequentialSampler, data.RandomSampler)
        if type(sampler) is data.BatchSampler and (is_ours or isinstance(loader.sampler, data.DistributedSampler)):
            size, batch = len(loader.dataset), sampler.batch_size
            batches = [list(range(start, min(start + batch, size))) for start in range(0, size, batch)]
            return batches[:-1] if sampler.drop_last and size % batch else batches
        seed_everything(0)  # the same for all workers
        return [list(indices) for indices in sampler or ()]

    def _remade(self, samples: list[list[int]], wanted: list[int]) -> Any:
        """The same loader over these batches. Randomness in a sample depends on its place alone."""
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
        raise UsageError(
            f"{method} returned an object of type {type(result).__name__}",
            hint='return a dict: {"loss": loss}',
            code="evaluation-result-not-a-dict",
        )
    return result


def _as_number(name: str, value: Any) -> Any:
    try:
        return number(name, value)
    except UsageError:
        return value  # evaluate_full_dataset may return any plain data
