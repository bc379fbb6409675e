"""The leader's state reaches the others as it was, from machine to machine and through shared memory, whoever dies."""

from __future__ import annotations

import re

import pytest

from lab.ranks import Play

ONE = [[0, 1, 2]]
THREE = [[0], [1], [2]]
MIXED = [[0, 2], [1, 3, 4], [5]]


@pytest.mark.parametrize("machines", [ONE, THREE, MIXED], ids=["one machine", "three machines", "mixed"])
def test_all_receive_what_the_leader_held_when_it_was_asked(play: Play, machines: list[list[int]]) -> None:
    told = play(sum(map(len, machines)), "brings", machines=machines)
    assert len({digest for each in told for digest in each}) == 1


SAID = re.compile("w[13] received a state with checksum [0-9a-f]{16}, but w0 sent [0-9a-f]{16}")


def test_a_state_that_changes_on_its_way_is_refused_and_the_sender_learns_of_it(play: Play) -> None:
    sender, first, *others = play(4, "flips", machines=[[0], [1, 3], [2]], is_copied=False)
    assert sender == ["StateChanged"]  # next time it copies the state first
    assert first[0] == "StateChanged" and SAID.fullmatch(first[1])
    assert all(each[0] in ("StateChanged", "PeerLost") for each in others)  # whichever of the two is first


def test_a_copy_with_a_flipped_bit_is_an_error(play: Play) -> None:
    sender, first = play(2, "flips", machines=[[0], [1]], is_copied=True)
    assert sender == ["ConnectionResetError"]
    assert first[0] == "StateMismatch" and SAID.fullmatch(first[1])


@pytest.mark.parametrize("victim", range(6))
def test_the_sender_a_receiver_or_a_bystander_dies_and_the_others_begin_again(play: Play, victim: int) -> None:
    told = play(6, "goes_on", machines=MIXED, victim=victim)
    assert told.pop(victim) is None
    assert len(set(told)) == 1
