"""torch's DistributedSampler for workers that come and go: it knows how far an epoch has come, and continues there.

    sampler = everstep.ElasticDistributedSampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
    …
    checkpoint["sampler"] = sampler.state_dict(step, loader.batch_size)    # `step` batches done since this loop began
    …
    sampler.load_state_dict(checkpoint["sampler"])                         # by any other number of workers

A position is an absolute number of samples of an epoch, and an epoch's order is the same for every number of workers:
after any number of resizes and resumes no sample is lost or repeated. The one exception is torch's own: at an epoch's
end, where the samples left do not divide by the workers, `drop_last=False` repeats the epoch's first samples (fewer
than there are workers) and `drop_last=True` drops the rest. Nothing is written down: an epoch of 10^9 samples begins,
or continues, at once."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch.distributed as dist
from torch.utils.data import Dataset, DistributedSampler

from everstep.data.permutation import BLOCK, Permutation
from everstep.errors import UsageError


class CommitSource(Protocol):
    """Knows what has been committed: a loader that a trainer drives."""

    def set_epoch(self, epoch: int) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class ElasticDistributedSampler(DistributedSampler[int]):
    """Takes torch's arguments. Without a process group it is rank 0 of 1.

    `set_epoch` keeps the position where it names the resumed epoch; any other epoch begins at 0. An iteration that was
    left early begins again where it began; one that came to its end is followed by a whole epoch."""

    def __init__(
        self,
        dataset: Dataset[Any],
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.size = _size_of(dataset)
        num_replicas, rank = _place(num_replicas, rank)
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
        self._source: CommitSource | None = None
        self._next = 0  # where the next iteration begins
        self._lay_out(0)

    def _lay_out(self, begin: int) -> None:
        """Say what an iteration from there has for each rank: torch's numbers, counted from `begin`."""
        left = self.size - begin
        self._begin = begin
        self._iteration = object()
        self.num_samples = left // self.num_replicas if self.drop_last else -(-left // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        if self._source is not None:
            raise UsageError(
                "this sampler belongs to a trainer's loader and cannot be iterated",
                hint="iterate over the loader instead; for another loader, make another sampler",
                code="sampler-follows-loader",
            )
        self._lay_out(self._next)
        return itertools.chain.from_iterable(self._blocks(self._iteration))

    def _blocks(self, iteration: object) -> Iterator[Iterable[int]]:
        first = self._begin + self.rank
        places = range(first, first + self.total_size, self.num_replicas)
        inside = range(first, min(places.stop, self.size), self.num_replicas)
        padding = [place % self.size for place in places[len(inside) :]]
        if not self.shuffle:
            yield inside
            yield padding
        else:
            order = Permutation(self.size, self.seed, self.epoch)
            for number in range(0, len(inside), BLOCK):
                block = inside[number : number + BLOCK]
                # A view gives Python's integers one by one: quicker than a list of them, and a fifth of its memory.
                yield order[block.start : min(block.stop, self.size) : block.step].data
            yield order.at(padding).data
        if iteration is self._iteration:
            self._next = 0

    def __len__(self) -> int:
        """How many samples this rank gets in this iteration, counted from where it begins."""
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """The next iteration goes over this epoch, from where it was resumed or else from its beginning."""
        epoch = _count(epoch, "epoch")
        if self._source is not None:
            self._source.set_epoch(epoch)
        if epoch != self.epoch:
            self._go_to(epoch, 0)

    def _go_to(self, epoch: int, position: int) -> None:
        self.epoch, self._next = epoch, position
        self._lay_out(position)

    def state_dict(self, step: int = 0, batch_size: int = 1) -> dict[str, Any]:
        """Where training stands after `step` batches of this iteration, each of `batch_size` samples on every worker.

        Where a trainer drives the loader, what it has committed is said instead and the arguments have no meaning.
        At the end of an epoch that is the beginning of the next."""
        if self._source is not None:
            return self._source.state_dict()
        step, batch_size = _count(step, "step"), _count(batch_size, "batch_size", least=1)
        epoch, position = self.epoch, self._begin + step * batch_size * self.num_replicas
        if position and position >= self._begin + self.total_size:
            epoch, position = epoch + 1, 0
        return {
            "epoch": epoch,
            "position": position,
            "size": self.size,
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where this state was saved, by any number of workers. An empty state is a fresh start.

        DLRover's state is read too: its number of completed samples is the position. The order of a shuffled epoch is
        not DLRover's, so its last epoch is exact only without shuffling; from the next one on nothing differs."""
        epoch, position = resume_point(state, size=self.size, seed=self.seed, shuffle=self.shuffle)
        self._go_to(epoch, position)
        if self._source is not None:
            self._source.load_state_dict({**state, "epoch": epoch, "position": position} if state else {})
            self._source.set_epoch(epoch)  # a sampler's next iteration goes over the epoch that it was resumed in

    def bind(self, source: CommitSource) -> None:
        """Leave the position to this loader from now on: it knows which steps were committed."""
        self._source = source


def resume_point(state: Mapping[str, Any], *, size: int, seed: int, shuffle: bool) -> tuple[int, int]:
    """The epoch and the position in it at which a saved state continues; it must be of this data."""
    for name, own in (("size", size), ("seed", seed), ("shuffle", shuffle)):
        if state.get(name, own) != own:
            raise UsageError(
                f"the sampler's state is of other data: {name}={state[name]} there, {name}={own} here",
                hint="resume with the dataset, seed and shuffle that the state was saved with",
                code="state-of-other-data",
            )
    epoch = _count(state.get("epoch", 0), "epoch")
    position = _count(state.get("position", state.get("completed_num", 0)), "position")
    if position and position >= size:
        return epoch + 1, 0
    return epoch, position


def _size_of(dataset: Any) -> int:
    try:
        return len(dataset)
    except TypeError:
        raise UsageError(
            f"a dataset without a length cannot be shared out: {type(dataset).__qualname__} has no len()",
            hint="use a map-style dataset, with __len__ and __getitem__",
            code="sampler-dataset-without-length",
        ) from None


def _place(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """The number of workers and this one's number, as given, else those of torch's process group, else one alone."""
    if num_replicas is None or rank is None:
        if dist.is_available() and dist.is_initialized():
            num_replicas = dist.get_world_size() if num_replicas is None else num_replicas
            rank = dist.get_rank() if rank is None else rank
        elif num_replicas is None and rank is None:
            num_replicas, rank = 1, 0
        else:
            raise UsageError(
                f"num_replicas={num_replicas}, rank={rank}: one is missing and there is no process group to ask",
                hint="give both, or make the sampler after init_process_group()",
                code="rank-without-num-replicas",
            )
    if not 0 <= rank < num_replicas:
        raise UsageError(
            f"rank={rank} of num_replicas={num_replicas}", hint="count ranks from 0", code="rank-out-of-range"
        )
    return num_replicas, rank


def _count(value: Any, name: str, least: int = 0) -> int:
    hint = f"give an int from {least} up"
    try:
        number = operator.index(value)
    except TypeError:
        what = f"{name}={value!r} is not a whole number"
        raise UsageError(what, hint=hint, code="sampler-not-whole-number") from None
    if number < least:
        raise UsageError(f"{name}={number} is less than {least}", hint=hint, code="sampler-number-too-small")
    return number
