"""The sampler: torch's in surface, and no sample lost or repeated whatever the number of workers was on the way."""

from __future__ import annotations

import collections
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

import everstep
from everstep.data.permutation import BLOCK, Permutation
from everstep.data.sampler import ElasticDistributedSampler
from everstep.errors import UsageError


class Numbers(Dataset[int]):
    """Sample i is i."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def workers(size: int, num: int, state: dict[str, Any] | None = None, **more: Any) -> list[ElasticDistributedSampler]:
    """A sampler for each of `num` workers, resumed from a state."""
    samplers = [ElasticDistributedSampler(Numbers(size), num, rank, **more) for rank in range(num)]
    for sampler in samplers:
        sampler.load_state_dict(state or {})
    return samplers


def the_state(samplers: list[ElasticDistributedSampler], step: int, batch_size: int) -> dict[str, Any]:
    """What any of them saves: all must say the same."""
    state, *others = [sampler.state_dict(step, batch_size) for sampler in samplers]
    assert all(other == state for other in others)
    return state


# --- torch's surface --------------------------------------------------------------------------------------


@given(
    size=st.integers(0, 60),
    num=st.integers(1, 9),
    drop_last=st.booleans(),
    rank=st.integers(0, 8),
)
def test_unshuffled_it_is_torchs_own(size: int, num: int, drop_last: bool, rank: int) -> None:
    rank %= num
    arguments: dict[str, Any] = {"num_replicas": num, "rank": rank, "shuffle": False, "drop_last": drop_last}
    ours = ElasticDistributedSampler(Numbers(size), **arguments)
    theirs = DistributedSampler(Numbers(size), **arguments)
    assert list(ours) == list(theirs)
    assert (len(ours), ours.total_size) == (len(theirs), theirs.total_size)


def test_the_order_is_the_permutation_whatever_the_number_of_workers() -> None:
    size = 3 * BLOCK + 5
    expected = Permutation(size, seed=4, epoch=2)[:].tolist()
    for num in (1, 2, 3, 7):
        samplers = workers(size, num, {"epoch": 2}, seed=4)
        dealt = [index for round_ in zip(*samplers, strict=True) for index in round_]
        assert dealt[:size] == expected
        assert dealt[size:] == expected[: len(dealt) - size]
        assert type(dealt[0]) is int


def test_it_is_one_of_torchs() -> None:
    sampler = everstep.ElasticDistributedSampler(Numbers(10))
    assert isinstance(sampler, DistributedSampler)
    assert (sampler.num_replicas, sampler.rank, len(sampler)) == (1, 0, 10)
    assert sorted(sampler) == list(range(10))


def test_epochs_differ_and_can_be_had_again() -> None:
    sampler = ElasticDistributedSampler(Numbers(100))
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_a_process_group_tells_who_it_is(tmp_path: Path) -> None:
    code = """
import sys, torch.distributed as dist, everstep
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
sampler = everstep.ElasticDistributedSampler(range(10), shuffle=False)
print(sampler.rank, sampler.num_replicas, list(sampler))
dist.destroy_process_group()
"""
    command = [sys.executable, "-c", code]
    pair = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [process.communicate()[0].strip() for process in pair]
    assert said == ["0 2 [0, 2, 4, 6, 8]", "1 2 [1, 3, 5, 7, 9]"]


# --- resizes and resumes ----------------------------------------------------------------------------------

phase = st.fixed_dictionaries(
    {"num": st.integers(1, 9), "batch_size": st.integers(1, 5), "steps": st.integers(0, 12), "named": st.booleans()}
)


@given(
    size=st.integers(1, 150),
    phases=st.lists(phase, max_size=10),
    last=st.integers(1, 9),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    seed=st.integers(0, 3),
)
def test_any_number_of_resizes_loses_and_repeats_nothing(
    size: int, phases: list[dict[str, Any]], last: int, shuffle: bool, drop_last: bool, seed: int
) -> None:
    seen: dict[int, list[int]] = collections.defaultdict(list)  # by epoch
    ended_with: dict[int, int] = {}  # epoch: the number of workers that ended it
    state: dict[str, Any] = {}
    final = {"num": last, "batch_size": 1, "steps": size, "named": False}
    for chapter in [*phases, final]:
        num, batch_size, steps = chapter["num"], chapter["batch_size"], chapter["steps"]
        samplers = workers(size, num, state, shuffle=shuffle, drop_last=drop_last, seed=seed)
        epoch = samplers[0].epoch
        if chapter["named"]:
            for sampler in samplers:
                sampler.set_epoch(epoch)
        assert {len(sampler) for sampler in samplers} == {samplers[0].num_samples}
        for sampler in samplers:
            seen[epoch] += islice(sampler, steps * batch_size)
        state = the_state(samplers, steps, batch_size)
        assert state["epoch"] in (epoch, epoch + 1)
        if state["epoch"] != epoch:
            assert state["position"] == 0
            assert steps * batch_size >= len(samplers[0])
            ended_with[epoch] = num

    for epoch, num in ended_with.items():
        order = Permutation(size, seed, epoch)[:].tolist() if shuffle else list(range(size))
        extra = collections.Counter(seen[epoch]) - collections.Counter(order)
        missing = collections.Counter(order) - collections.Counter(seen[epoch])
        if drop_last:
            assert not extra and missing.total() < num
            assert set(missing) == set(order[size - missing.total() :])
        else:
            assert not missing and extra.total() < num
            assert set(extra) == set(order[: extra.total()])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_plain_loader_goes_on_with_other_numbers_of_workers(num_workers: int) -> None:
    size, batch_size, state = 1001, 4, {}
    seen: list[int] = []
    for num, steps in ((4, 10), (2, 25), (3, 7), (1, 13), (2, 1000)):
        samplers = workers(size, num, state, seed=3)
        done = 0
        for sampler in samplers:
            loader = DataLoader(Numbers(size), batch_size, sampler=sampler, num_workers=num_workers)
            batches = [batch.tolist() for batch in islice(loader, steps)]
            assert len(batches) == min(steps, len(loader))
            seen += chain.from_iterable(batches)
            done = len(batches)
        state = the_state(samplers, done, batch_size)
    assert (state["epoch"], state["position"]) == (1, 0)
    assert set(seen) == set(range(size))
    assert len(seen) - size < 2


def test_a_state_within_a_resumed_iteration_counts_from_where_that_began() -> None:
    (sampler,) = workers(100, 1)
    for _ in range(3):
        state = sampler.state_dict(step=2, batch_size=5)
        (sampler,) = workers(100, 1, state)
    assert sampler.state_dict()["position"] == 30
    assert len(sampler) == 70


def test_a_state_at_the_end_of_an_epoch_is_the_next_epoch() -> None:
    samplers = workers(1001, 4)
    steps = len(DataLoader(Numbers(1001), 4, sampler=samplers[0]))
    state = the_state(samplers, steps, 4)
    assert (state["epoch"], state["position"]) == (1, 0)
    assert len(workers(1001, 3, state)[0]) == 334


def test_a_resumed_epoch_keeps_its_position_when_it_is_named() -> None:
    (sampler,) = workers(100, 1, {"epoch": 3, "position": 60})
    sampler.set_epoch(3)
    assert list(sampler) == Permutation(100, epoch=3)[60:].tolist()
    sampler.set_epoch(4)
    assert len(sampler) == len(list(sampler)) == 100


def test_a_look_at_the_first_batch_does_not_lose_the_position() -> None:
    (sampler,) = workers(100, 1, {"position": 60})
    next(iter(sampler))
    assert len(list(sampler)) == 40


def test_the_iteration_after_a_resumed_one_is_whole_also_without_set_epoch() -> None:
    (sampler,) = workers(100, 1, {"position": 60})
    assert len(list(sampler)) == 40
    assert sampler.state_dict(step=4, batch_size=5)["position"] == 80  # the loader reads ahead of the training
    assert len(list(sampler)) == 100


def test_an_iteration_of_the_past_does_not_touch_the_next() -> None:
    (sampler,) = workers(100, 1, {"position": 60})
    old = iter(sampler)
    sampler.load_state_dict({"position": 30})
    list(old)
    assert len(list(sampler)) == 70


def test_an_empty_state_is_a_fresh_start() -> None:
    (sampler,) = workers(100, 1, {"epoch": 2, "position": 60})
    sampler.load_state_dict({})
    assert (sampler.epoch, len(list(sampler))) == (0, 100)


@pytest.mark.parametrize(
    ("completed", "epoch", "left"), [(0, 5, 1001), (400, 5, 601), (1001, 6, 1001), (1008, 6, 1001)]
)
def test_dlrovers_state_is_read(completed: int, epoch: int, left: int) -> None:
    (sampler,) = workers(1001, 1, {"completed_num": completed, "epoch": 5})
    assert (sampler.epoch, len(sampler)) == (epoch, left)


def test_a_trainer_that_drives_the_loader_knows_better() -> None:
    class Loader:
        def __init__(self) -> None:
            self.state: dict[str, Any] = {"epoch": 1, "position": 8}
            self.epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def state_dict(self) -> dict[str, Any]:
            return self.state

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state

    sampler, loader = ElasticDistributedSampler(Numbers(100)), Loader()
    sampler.bind(loader)
    assert sampler.state_dict(5, 5) == {"epoch": 1, "position": 8}
    sampler.set_epoch(7)
    assert loader.epoch == 7
    sampler.load_state_dict({"completed_num": 100, "epoch": 2})
    assert (loader.state["epoch"], loader.state["position"]) == (3, 0)
    sampler.load_state_dict({})
    assert loader.state == {}
    with pytest.raises(UsageError, match="iterate over the loader"):
        iter(sampler)


# --- bad use ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"size": 99}, "size=99 there, size=100 here"),
        ({"seed": 1}, "seed=1 there, seed=0 here"),
        ({"shuffle": False}, "shuffle=False there, shuffle=True here"),
        ({"position": -4}, "position=-4"),
        ({"epoch": "one"}, "epoch='one'"),
    ],
)
def test_a_state_of_other_data_is_refused(state: dict[str, Any], said: str) -> None:
    sampler = ElasticDistributedSampler(Numbers(100))
    with pytest.raises(UsageError, match=said):
        sampler.load_state_dict(state)
    assert (sampler.epoch, len(sampler)) == (0, 100)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_replicas": 2}, "num_replicas=2, rank=None"),
        ({"rank": 0}, "num_replicas=None, rank=0"),
        ({"num_replicas": 2, "rank": 2}, "rank=2 of num_replicas=2"),
        ({"num_replicas": 0, "rank": 0}, "rank=0 of num_replicas=0"),
    ],
)
def test_a_place_that_cannot_be_is_refused(arguments: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ElasticDistributedSampler(Numbers(10), **arguments)


def test_counts_that_cannot_be_are_refused() -> None:
    sampler = ElasticDistributedSampler(Numbers(10))
    with pytest.raises(UsageError, match="step=-1"):
        sampler.state_dict(-1, 4)
    with pytest.raises(UsageError, match="batch_size=0"):
        sampler.state_dict(1, 0)
    with pytest.raises(UsageError, match="epoch=-1"):
        sampler.set_epoch(-1)


def test_a_dataset_without_a_length_is_refused() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(())

    with pytest.raises(UsageError, match="Stream has no len"):
        ElasticDistributedSampler(Stream())
