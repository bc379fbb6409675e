"""How gradients travel between devices, with CPU tensors and gloo as a stand-in for NCCL: the stories that tests/cuda
runs on a GPU, so that the code cannot rot."""

from __future__ import annotations

import pytest

from lab import device_stories

CPU = "cpu"


@pytest.mark.parametrize("workers", [2, 4])
def test_several_workers_have_the_bits_of_one(workers: int) -> None:
    device_stories.undisturbed(CPU, workers)


def test_fast_sums_are_the_same_on_all_workers() -> None:
    device_stories.fast(CPU, workers=3)


@pytest.mark.parametrize("place", device_stories.PLACES)
def test_one_of_four_dies(place: str) -> None:
    device_stories.killed_in(place, CPU)


def test_two_of_four_die_at_once_in_the_middle_of_long_messages() -> None:
    device_stories.two_killed_at_once(CPU)


def test_one_freezes_for_good() -> None:
    device_stories.frozen(CPU)


def test_a_newcomer_joins() -> None:
    device_stories.joined(CPU)


def test_a_job_shrinks_to_one_and_grows_to_four() -> None:
    device_stories.shrunk_to_one_and_grown_to_four(CPU)


@pytest.mark.parametrize("moment", [1, 2])
def test_one_dies_while_the_communicator_forms(moment: int) -> None:
    device_stories.killed_while_the_communicator_forms(CPU, moment)


@pytest.mark.parametrize("who", ["sender", "receiver"])
def test_one_dies_in_a_transfer(who: str) -> None:
    device_stories.killed_in_a_transfer(CPU, who)


def test_thirty_regroups_leak_nothing() -> None:
    device_stories.thirty_regroups_leak_nothing(CPU, every=1, micro_batch_s=0.0)


def test_a_death_in_the_scripts_own_collective_is_a_lost_peer() -> None:
    device_stories.own_collective_broken(CPU)
