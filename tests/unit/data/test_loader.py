"""The loader: torch's arguments mean what they mean there, and torch's own loaders become ours in place."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import data

import everstep
from everstep.data.permutation import Permutation
from everstep.errors import UsageError
from everstep.native import ElasticTrainer
from lab.alone import make_trainer
from lab.length import usual
from lab.samples import Numbers, as_they_are


class Loop:
    """A trainer that learns nothing from a loader, and remembers what it was given."""

    def __init__(self, loader: Any, micro_batches: int = 2) -> None:
        self.loader = loader
        self.model = nn.Linear(1, 1)
        self.trainer: ElasticTrainer = make_trainer(self.model, loader, micro_batches)
        self.optimizer = self.trainer.prepare(torch.optim.SGD(self.model.parameters(), lr=0.0))

    def train(self) -> None:
        with self.trainer.step():
            self.model(torch.ones(1, 1)).sum().backward()
            self.optimizer.step()

    def epoch(self, number: int | None = None, stop_at: int | None = None) -> list[Any]:
        """All batches of one iteration, or those until `stop_at` steps are committed."""
        if number is not None:
            self.loader.set_epoch(number)
        got = []
        for batch in self.loader:
            got.append(batch)
            self.train()
            if self.trainer.num_steps == stop_at:
                break
        return got


def samples(batches: list[Any]) -> list[int]:
    return [int(sample) for batch in batches for sample in batch]


# --- batches ----------------------------------------------------------------------------------------------


def test_each_batch_is_a_micro_batch_and_len_counts_steps() -> None:
    loop = Loop(everstep.DataLoader(Numbers(20), batch_size=3), micro_batches=2)
    assert [batch.tolist() for batch in loop.epoch()] == [
        [0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14], [15, 16, 17], [18, 19],
    ]  # fmt: skip
    assert len(loop.loader) == loop.trainer.num_steps == 4


@settings(max_examples=usual(40, long=100))
@given(
    size=st.integers(1, 60),
    batch_size=st.integers(1, 6),
    micro_batches=st.integers(1, 6),
    stops=st.lists(st.integers(1, 8), max_size=3),
)
def test_resumed_again_and_again_with_other_micro_batches_an_epoch_has_every_sample_once(
    size: int, batch_size: int, micro_batches: int, stops: list[int]
) -> None:
    seen: dict[int, list[int]] = {}
    state: dict[str, Any] = {}
    for number, steps in enumerate([*stops, None]):
        loader = everstep.DataLoader(Numbers(size), batch_size=batch_size, shuffle=True, seed=2)
        loader.load_state_dict(state)
        epoch = loader.position.epoch
        loop = Loop(loader, micro_batches=1 + (micro_batches + number) % 6)
        seen.setdefault(epoch, []).extend(samples(loop.epoch(epoch, stop_at=steps)))
        state = loader.state_dict()
        assert state["epoch"] == epoch or (state["epoch"], state["position"]) == (epoch + 1, 0)
    assert all(sorted(each) == list(range(size)) for each in seen.values())


def test_drop_last_drops_a_global_batch_that_is_not_full() -> None:
    loop = Loop(everstep.DataLoader(Numbers(20), batch_size=3, drop_last=True), micro_batches=2)
    assert samples(loop.epoch()) == list(range(18))
    assert (len(loop.loader), loop.trainer.num_steps) == (3, 3)


def test_shuffling_is_by_seed_and_epoch() -> None:
    loop = Loop(everstep.DataLoader(Numbers(50), batch_size=4, shuffle=True, seed=9), micro_batches=3)
    for number in range(3):
        assert samples(loop.epoch()) == Permutation(50, 9, number)[:].tolist()


# --- epochs -----------------------------------------------------------------------------------------------


def test_an_epoch_that_is_done_yields_nothing() -> None:
    loop = Loop(everstep.DataLoader(Numbers(8), batch_size=2))
    assert [len(loop.epoch(number)) for number in (0, 0, 1, 0, 1, 2)] == [4, 0, 4, 0, 0, 4]


def test_without_set_epoch_one_iteration_is_one_epoch() -> None:
    loop = Loop(everstep.DataLoader(Numbers(8), batch_size=2))
    assert [len(loop.epoch()) for _ in range(3)] == [4, 4, 4]
    assert loop.loader.state_dict()["epoch"] == 3


def test_a_loader_that_was_resumed_in_a_later_epoch_wants_to_know_which_one_is_meant() -> None:
    first = Loop(everstep.DataLoader(Numbers(8), batch_size=2))
    first.epoch()
    first.epoch(stop_at=3)
    second = Loop(everstep.DataLoader(Numbers(8), batch_size=2))
    second.loader.load_state_dict(first.loader.state_dict())
    with pytest.raises(
        UsageError, match="resumed in epoch 1"
    ) as caught:  # range(2) would train too much, or too little
        second.epoch()
    assert "set_epoch" in str(caught.value)
    assert samples(second.epoch(1)) == [4, 5, 6, 7]
    assert second.loader.state_dict()["epoch"] == 2


def test_an_epoch_left_early_is_not_gone_on_with_unless_it_is_asked_for() -> None:
    loop = Loop(everstep.DataLoader(Numbers(12), batch_size=2))
    assert samples(loop.epoch(stop_at=1)) == [0, 1, 2, 3]
    assert samples(loop.epoch(0, stop_at=2)) == [4, 5, 6, 7]
    assert samples(loop.epoch()) == list(range(12))
    assert loop.loader.state_dict()["epoch"] == 2


def test_micro_batches_computed_before_an_epoch_was_left_do_not_count_in_the_next() -> None:
    loop = Loop(everstep.DataLoader(Numbers(12), batch_size=2), micro_batches=3)
    for _ in loop.loader:
        loop.train()
        break  # one micro-batch of three
    assert samples(loop.epoch(1)) == list(range(12))
    assert loop.trainer.num_steps == 2


# --- torch's arguments ------------------------------------------------------------------------------------


def test_collate_fn() -> None:
    loop = Loop(everstep.DataLoader(Numbers(6), batch_size=2, collate_fn=lambda numbers: f"{numbers}"))
    assert loop.epoch() == ["[0, 1]", "[2, 3]", "[4, 5]"]


class Sees:
    """A worker_init_fn that writes down what it finds."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, number: int) -> None:
        info = data.get_worker_info()
        assert info is not None
        info.dataset.size = 4  # its own copy in this process; len() was taken before
        with open(self.path, "a") as file:
            print(number, info.id, info.num_workers, type(info.dataset).__name__, file=file)


@pytest.mark.parametrize("is_persistent", [False, True])
def test_worker_init_fn_finds_the_dataset_and_runs_as_often_as_processes_start(
    tmp_path: Any, is_persistent: bool
) -> None:
    loader = everstep.DataLoader(
        Numbers(8),
        batch_size=2,
        num_workers=2,
        worker_init_fn=Sees(str(tmp_path / "seen")),
        persistent_workers=is_persistent,
        prefetch_factor=3,
    )
    loop = Loop(loader)
    assert samples(loop.epoch()) == samples(loop.epoch()) == list(range(8))
    told = sorted((tmp_path / "seen").read_text().splitlines())
    assert told == sorted(["0 0 2 Numbers", "1 1 2 Numbers"] * (1 if is_persistent else 2))
    if is_persistent:
        end_processes(loop)


def end_processes(loop: Loop) -> None:
    """Persistent ones end with the loader; left to the garbage collection, torch waits 5 s for each."""
    loop.loader._source._iterator._shutdown_workers()


class Pids(Numbers):
    def __getitem__(self, index: int) -> int:
        return os.getpid()


def test_persistent_workers_stay_over_epochs_also_over_one_left_early() -> None:
    loop = Loop(everstep.DataLoader(Pids(20), batch_size=1, num_workers=2, persistent_workers=True))
    pids = [set(samples(loop.epoch(number, stop_at=stop))) for number, stop in ((0, None), (1, 12), (2, None))]
    assert len(pids[0]) == 2
    assert pids[0] >= pids[1]
    assert pids[2] == pids[0]
    end_processes(loop)


@pytest.mark.parametrize("prefetch_factor", [1, 4])
def test_prefetch_factor(prefetch_factor: int) -> None:
    loop = Loop(everstep.DataLoader(Numbers(40), num_workers=1, prefetch_factor=prefetch_factor))
    iterator = iter(loop.loader)
    next(iterator)
    assert len(loop.loader._requests.asked) == prefetch_factor


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_pin_memory_without_a_gpu_is_as_with_torch(num_workers: int) -> None:
    loop = Loop(everstep.DataLoader(Numbers(8), batch_size=2, pin_memory=True, num_workers=num_workers))
    assert samples(loop.epoch()) == list(range(8))


def test_multiprocessing_context() -> None:
    fork = multiprocessing.get_context("fork")
    loop = Loop(everstep.DataLoader(Numbers(8), num_workers=1, multiprocessing_context=fork))
    assert samples(loop.epoch()) == list(range(8))
    assert loop.loader._source.multiprocessing_context is fork  # type: ignore[union-attr]


class Breaks(Numbers):
    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise ZeroDivisionError("sample 5 is broken")
        return index


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_of_the_dataset_rises_with_its_own_type(num_workers: int) -> None:
    loop = Loop(everstep.DataLoader(Breaks(8), batch_size=2, num_workers=num_workers))
    with pytest.raises(ZeroDivisionError, match="sample 5 is broken") as caught:
        loop.epoch()
    assert loop.trainer.num_steps == 1
    for frame, _ in traceback.walk_tb(caught.tb):
        if hasattr(holder := frame.f_locals.get("self"), "_shutdown_workers"):
            holder._shutdown_workers()  # the traceback would keep them


# --- torch's own loaders ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, list(range(10))),
        ({"shuffle": True}, Permutation(10, 0, 0)[:].tolist()),
        ({"sampler": data.SequentialSampler(Numbers(10))}, list(range(10))),
        ({"sampler": data.DistributedSampler(Numbers(10), 3, 1, shuffle=False)}, list(range(10))),
        ({"sampler": data.DistributedSampler(Numbers(10), 3, 1, seed=4)}, Permutation(10, 4, 0)[:].tolist()),
        ({"sampler": everstep.ElasticDistributedSampler(Numbers(10), 3, 1, seed=4)}, Permutation(10, 4, 0)[:].tolist()),
        ({"num_workers": 1, "collate_fn": as_they_are}, list(range(10))),
    ],
    ids=["plain", "shuffle", "sequential", "distributed", "distributed, shuffled", "elastic", "processes"],
)
def test_torchs_loader_becomes_ours_in_place(arguments: dict[str, Any], expected: list[int]) -> None:
    loader: Any = data.DataLoader(Numbers(10), batch_size=2, **arguments)
    loop = Loop(loader)
    assert type(loader) is everstep.DataLoader
    assert samples(loop.epoch()) == expected
    assert len(loader) == 3


def test_set_epoch_of_a_samplers_reaches_the_loader() -> None:
    for kind in (data.DistributedSampler, everstep.ElasticDistributedSampler):
        sampler = kind(Numbers(10), 2, 0, seed=1)
        loop = Loop(data.DataLoader(Numbers(10), batch_size=2, sampler=sampler))
        for number in (0, 1):
            sampler.set_epoch(number)
            assert samples(loop.epoch()) == Permutation(10, 1, number)[:].tolist()
        sampler.set_epoch(0)
        assert loop.epoch() == []


def test_a_resumed_elastic_sampler_gives_its_position_and_afterwards_says_what_was_committed() -> None:
    sampler = everstep.ElasticDistributedSampler(Numbers(20), shuffle=False)
    sampler.load_state_dict({"epoch": 2, "position": 8})
    loop = Loop(data.DataLoader(Numbers(20), batch_size=2, sampler=sampler))
    assert samples(loop.epoch(stop_at=2)) == list(range(8, 16))
    state = sampler.state_dict(999, 999)  # as the seed of all this calls it: its own counts have no meaning here
    assert (state["epoch"], state["position"]) == (2, 16)
    sampler.load_state_dict({"epoch": 5, "position": 18})
    assert samples(loop.epoch()) == [18, 19]
    sampler.load_state_dict({})
    assert (loop.loader.position.epoch, loop.loader.position.samples) == (0, 0)


class Unsized(data.Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Stream(data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class OwnLoader(data.DataLoader[Any]):
    pass


WEIGHTED = data.WeightedRandomSampler([1.0] * 8, 8)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "iterable": ({"dataset": Stream()}, "Stream is an iterable dataset"),
    "unsized": ({"dataset": Unsized()}, "Unsized has no __len__"),
    "empty": ({"dataset": Numbers(0)}, "Numbers has 0 samples"),
    "batch_size 0": ({"batch_size": 0}, "batch_size=0"),
    "batch_size -3": ({"batch_size": -3}, "batch_size=-3"),
    "no batch_size": ({"batch_size": None}, "batch_size=None"),
    "half a batch": ({"batch_size": 2.5}, "batch_size=2.5"),
    "batch_sampler": ({"batch_sampler": [[0], [1]]}, "batch_sampler"),
    "weighted": ({"sampler": WEIGHTED}, "WeightedRandomSampler decides"),
    "replacement": ({"sampler": data.RandomSampler(Numbers(8), replacement=True)}, "RandomSampler decides"),
    "some of them": ({"sampler": data.RandomSampler(Numbers(8), num_samples=3)}, "RandomSampler decides"),
    "out of order": ({"in_order": False}, "in_order=False"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused(name: str) -> None:
    arguments, words = REFUSED[name]
    with pytest.raises(UsageError, match=words) as caught:
        everstep.DataLoader(**({"dataset": Numbers(8)} | arguments))
    assert caught.value.hint


@pytest.mark.parametrize("name", ["iterable", "no batch_size", "batch_sampler", "weighted", "replacement"])
def test_so_is_torchs_loader_with_the_same(name: str) -> None:
    arguments, words = REFUSED[name]
    if name == "iterable":
        words = "Stream is an iterable dataset.*\n.*RecordIndexService"
    loader: Any = data.DataLoader(**({"dataset": Numbers(8)} | arguments))
    with pytest.raises(UsageError, match=words):
        Loop(loader)
    assert type(loader) is data.DataLoader, "it stays what it was"


def test_a_loader_of_another_kind_is_refused_by_its_name() -> None:
    with pytest.raises(UsageError, match="cannot follow a .*OwnLoader") as caught:
        Loop(OwnLoader(Numbers(8)))
    assert caught.value.hint


def test_drop_last_that_would_drop_all_is_refused_with_the_numbers() -> None:
    loader = everstep.DataLoader(Numbers(23), batch_size=4, drop_last=True)
    with pytest.raises(UsageError, match="all 23 samples: a global batch is batch_size=4 × 6 micro-batches = 24"):
        Loop(loader, micro_batches=6)


def test_a_loader_without_a_trainer_says_so() -> None:
    loader = everstep.DataLoader(Numbers(8))
    for use in (len, iter):
        with pytest.raises(UsageError, match="trainer") as caught:
            use(loader)
        assert "ElasticTrainer(model, loader)" in str(caught.value)
    with pytest.raises(UsageError, match="epoch=-1"):
        loader.set_epoch(-1)


def test_a_state_of_another_dataset_is_refused() -> None:
    state = Loop(everstep.DataLoader(Numbers(8))).loader.state_dict()
    with pytest.raises(UsageError, match="size=8 there, size=9 here") as caught:
        everstep.DataLoader(Numbers(9)).load_state_dict(state)
    assert caught.value.hint
