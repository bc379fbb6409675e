"""Workers that share one GPU over NCCL die: in any part of a step, two at once, while a communicator forms, in a
transfer, in the script's own collective. The others continue with the bits of one worker."""

from __future__ import annotations

import pytest

from lab import device_stories

CUDA = "cuda"
LONG = 400_000  # hidden units: 109 MB of gradients


@pytest.mark.parametrize("place", device_stories.PLACES)
def test_one_of_four_dies(place: str) -> None:
    device_stories.killed_in(place, CUDA)


def test_two_of_four_die_at_once_in_the_middle_of_long_messages() -> None:
    device_stories.two_killed_at_once(CUDA, LONG)


def test_one_freezes_for_good() -> None:
    device_stories.frozen(CUDA)


@pytest.mark.parametrize("moment", [1, 2])
def test_one_dies_while_the_communicator_forms(moment: int) -> None:
    device_stories.killed_while_the_communicator_forms(CUDA, moment)


@pytest.mark.parametrize("who", ["sender", "receiver"])
def test_one_dies_in_a_transfer(who: str) -> None:
    device_stories.killed_in_a_transfer(CUDA, who)


def test_a_death_in_the_scripts_own_collective_is_a_lost_peer() -> None:
    device_stories.own_collective_broken(CUDA)
