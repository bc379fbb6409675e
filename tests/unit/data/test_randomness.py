"""Random transforms depend on the sample's place in the epoch: not on who reads it, in which process, or when."""

from __future__ import annotations

import itertools
import multiprocessing.resource_tracker
import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import everstep
from everstep.data.epoch_order import EpochOrder
from everstep.data.randomness import KeyedDataset, sample_seed
from lab.alone import make_trainer
from lab.samples import InBatches, Noisy, Numbers, SeldomNoisy, as_they_are

SIZE = 20


@pytest.fixture(autouse=True)
def ended_resource_tracker() -> Iterator[None]:
    """Spawning starts one, which stays."""
    yield
    multiprocessing.resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


def epoch(dataset: Any, number: int = 0, micro_batches: int = 2, **more: Any) -> list[Any]:
    """What the loop gets in one epoch, in order."""
    loader = everstep.DataLoader(dataset, batch_size=3, shuffle=True, seed=5, collate_fn=as_they_are, **more)
    model = nn.Linear(1, 1)
    trainer = make_trainer(model, loader, micro_batches)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.0))
    loader.set_epoch(number)
    got = []
    for batch in loader:
        with trainer.step():
            random.random(), numpy.random.rand(), torch.rand(())  # the body draws too
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
        got.append(batch)
    return list(itertools.chain.from_iterable(got))


@pytest.mark.parametrize("streams", [("python",), ("numpy",), ("torch",), ("torch", "python", "numpy")])
def test_each_sample_has_its_own_stream(streams: tuple[str, ...]) -> None:
    samples = epoch(Noisy(SIZE, *streams))
    assert sorted(sample[0] for sample in samples) == list(range(SIZE))
    for draws in zip(*(sample[1:] for sample in samples), strict=True):
        assert len(set(draws)) == SIZE


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3")
@pytest.mark.parametrize(("num_workers", "context"), [(1, "fork"), (3, "fork"), (1, "spawn")])
def test_the_same_numbers_whoever_reads(num_workers: int, context: str) -> None:
    dataset = Noisy(SIZE, "torch", "python", "numpy")
    there = epoch(dataset, num_workers=num_workers, multiprocessing_context=context)
    assert there == epoch(dataset)


def test_a_batch_that_is_read_as_one_has_the_stream_of_its_first_place() -> None:
    dataset = InBatches(SIZE)
    samples = epoch(dataset)
    assert samples == epoch(dataset, num_workers=2)
    assert len({sample[1] for sample in samples}) == -(-SIZE // 3)
    random.seed(sample_seed(5, 0, 0))
    assert samples[0][1] == random.random()


def test_the_micro_batches_do_not_show_in_a_samples_numbers() -> None:
    dataset = Noisy(SIZE, "python")
    assert sorted(epoch(dataset, micro_batches=1)) == sorted(epoch(dataset, micro_batches=5))


def test_epochs_and_seeds_differ() -> None:
    dataset = Noisy(SIZE, "torch")
    assert sorted(epoch(dataset, 0)) != sorted(epoch(dataset, 1))
    assert len({sample_seed(seed, number, place) for seed in (0, 1) for number in (0, 1) for place in range(9)}) == 36


def test_samples_that_seldom_draw_have_their_streams_too() -> None:
    dataset = SeldomNoisy(SIZE)
    first = epoch(dataset)
    assert first == epoch(dataset, num_workers=2)
    order = EpochOrder(size=SIZE, batch_size=3, micro_batches=2, shuffle=True, seed=5)
    for place, index in enumerate(order.indices(0, range(SIZE))):
        random.seed(sample_seed(5, 0, place))
        assert first[place] == [float(index), random.random() if index % 5 == 3 else 0.0]


def test_the_seeds_are_frozen() -> None:
    assert sample_seed(0, 0, 0) == 0x97147C41C709EB90  # bits of old runs depend on it
    assert sample_seed(7, 3, 1_000_000_007) == 0xC438340276C9DEF7


def test_without_randomness_each_sample_is_read_once() -> None:
    dataset = Numbers(SIZE)
    epoch(dataset)
    assert dataset.num_reads == SIZE


def test_with_randomness_only_the_first_batch_is_read_twice() -> None:
    dataset = Noisy(SIZE, "python")
    epoch(dataset)
    assert dataset.num_reads == SIZE + 3


def test_a_dataset_that_seeds_by_itself_counts_as_random() -> None:
    class Seeds(Numbers):
        def __getitem__(self, index: int) -> Any:
            super().__getitem__(index)
            random.seed(index)
            return random.random()

    dataset = Seeds(SIZE)
    assert epoch(dataset) == epoch(dataset, num_workers=1)


def test_in_a_loader_process_nothing_is_seeded_until_something_draws() -> None:
    keyed = KeyedDataset(Numbers(SIZE), 0, as_they_are)
    keyed._streams.are_ours = True
    for start in range(0, SIZE, 4):
        assert keyed.__getitems__(([*range(start, start + 4)], 0, start)) == [*range(start, start + 4)]
    assert not keyed._is_random
    assert keyed.dataset.num_reads == SIZE


def test_the_loops_own_draws_are_those_of_the_micro_batch_whatever_was_read_before_it() -> None:
    def drawn(dataset: Any, **more: Any) -> list[float]:
        loader = everstep.DataLoader(dataset, batch_size=5, **more)
        model = nn.Linear(1, 1)
        trainer = make_trainer(model, loader, micro_batches=2)
        optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.0))
        seen = []
        for _ in loader:
            seen += [torch.rand(()).item(), random.random(), float(numpy.random.rand())]  # outside of the step
            with trainer.step():
                model(torch.ones(1, 1)).sum().backward()
                optimizer.step()
        return seen

    numbers = drawn(Numbers(SIZE))
    assert len(set(numbers)) == 3 * 4
    assert numbers == drawn(Noisy(SIZE, "torch")) == drawn(Numbers(SIZE), num_workers=1)
