"""One contract, four ways to sum a step: over gloo, through the memory of neighbors, in levels (nodes of neighbors, and
gloo between them), and from device to device (with gloo in place of NCCL). Deaths at every operation of the last
two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lab.ranks import Play

WAYS = ("neighbors", "gloo", "levels in rows", "levels crosswise", "device")
PLANS = ("in runs", "scattered", "the first brings nothing", "the last brings all")
SIZES = (1, 2, 3, 4, 5)
QUICK_S = 9.0  # a sum is given up before anything runs into a time limit: the shortest is 10 s
OPERATIONS = {True: 9, False: 5}  # exact, fast: two or one each to connect, to try, and for both runs; one for buffers

World = Callable[[int], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def world(play: Play) -> World:
    """What each rank of a world of this size computed, in every way."""
    played: dict[int, list[dict[str, Any]]] = {}

    def of_size(size: int) -> list[dict[str, Any]]:
        if size not in played:
            played[size] = play(size, "every way")
        return played[size]

    return of_size


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SIZES)
def test_exact_sums_have_the_bits_of_one_worker(world: World, size: int, way: str) -> None:
    for rank in world(size):
        assert {rank["sums"][f"exact {way} {plan}"]["bits"] for plan in PLANS} == {rank["expected"]}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SIZES)
def test_fast_sums_are_equal_on_all_ranks_and_right_within_rounding(world: World, size: int, way: str) -> None:
    ranks = world(size)
    for plan in PLANS:
        sums = [rank["sums"][f"fast {way} {plan}"] for rank in ranks]
        assert len({each["bits"] for each in sums}) == 1
        for mean, expected in zip(sums[0]["numbers"], ranks[0]["numbers"], strict=True):
            assert mean == pytest.approx(expected, rel=0.02, abs=0.5)  # bfloat16, with terms of up to a thousand


@pytest.mark.parametrize("size", SIZES)
def test_model_buffers_of_the_first_leaf_with_weight_arrive_everywhere(world: World, size: int) -> None:
    for rank in world(size):
        for each in rank["sums"].values():
            assert each["buffers"] == [[1.0] * 5, 10], each


@pytest.mark.parametrize("size", SIZES)
def test_sums_are_only_read(world: World, size: int) -> None:
    for rank in world(size):
        assert all(each["is_unchanged"] for each in rank["sums"].values())


def test_the_model_of_these_stories_has_several_runs_and_slices_of_no_length(world: World) -> None:
    rank = world(5)[0]
    assert len(rank["buckets_by_run"]) >= 4 and max(rank["buckets_by_run"]) > 1
    assert rank["smallest_bucket"] < 5
    assert {each["total"] for each in rank["sums"].values()} == {11.5}


# --- deaths -------------------------------------------------------------------------------------------------


def places(*, is_exact: bool) -> list[tuple[str, str]]:
    """Where a rank is lost, and how: killed with half of its messages sent, or frozen before the first."""
    operations = [
        (at, how)
        for number in range(1, OPERATIONS[is_exact] + 1)
        for at, how in ((f"amid operation {number}", "SIGKILL"), (f"before operation {number}", "SIGSTOP"))
    ]
    others = ("before connecting", "while connecting", "before the pulse")
    return operations + [(at, how) for at in others for how in ("SIGKILL", "SIGSTOP")]


@pytest.mark.parametrize(("at", "how"), places(is_exact=True))
def test_a_death_anywhere_costs_only_what_the_dead_worker_held(play: Play, at: str, how: str) -> None:
    check_survivors(play, at, how, is_exact=True, victim=len(at) % 3)


@pytest.mark.parametrize(("at", "how"), places(is_exact=False))
def test_the_same_for_fast_sums(play: Play, at: str, how: str) -> None:
    check_survivors(play, at, how, is_exact=False, victim=1)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("at", ["_post", "_merge", "_finish", "collect", "_pass_on"])
@pytest.mark.parametrize("victim", [0, 3])
def test_the_same_in_levels(play: Play, at: str, how: str, victim: int) -> None:
    told = play(4, "lose one of a node", at=at, how=how, victim=victim)
    assert told[victim] is None
    survivors = [each for each in told if each is not None]
    assert len(survivors) == 3
    for each in survivors:
        assert each["after_s"] < QUICK_S
        assert each["is_unchanged"]
        assert each["bits"] == each["expected"]


@pytest.mark.parametrize(("off", "has_levels"), [([], True), ([2], False), ([0, 1, 2, 3], False)])
def test_levels_are_off_for_all_if_they_are_off_for_one(play: Play, off: list[int], has_levels: bool) -> None:
    assert play(4, "levels off", off=off) == [has_levels] * 4


@pytest.mark.parametrize(
    ("nodes", "among", "connections"),
    [
        ([[0, 1, 2, 3]], [0, 2], [0, 0, 0, 0]),
        ([[0, 1], [2, 3]], [0, 2, 3], [1, 1, 1, 1]),
        ([[0, 2, 4], [1, 3]], [0, 1, 2], [1, 2, 1, 1, 1]),
        ([[0], [1], [2]], [0, 1], [2, 2, 2]),
    ],
)
def test_workers_connect_only_where_messages_travel_and_reach_all_by_that(
    play: Play, nodes: list[list[int]], among: list[int], connections: list[int]
) -> None:
    """One node needs no connection over the network; otherwise each worker has one to each other node."""
    told = play(sum(map(len, nodes)), "say something", nodes=nodes, among=among)
    assert [each["is_right"] for each in told] == [True] * len(told)
    assert [each["connections"] for each in told] == connections
    assert [each["lines"] for each in told] == [
        len(node) - 1 for rank in range(len(told)) for node in nodes if rank in node
    ]


@pytest.mark.parametrize("is_level", [True, False])
def test_messages_of_a_step_may_be_longer_than_a_socket_holds(play: Play, is_level: bool) -> None:
    assert play(4, "swap long messages", is_level=is_level, num_bytes=1_500_000) == [True] * 4


def check_survivors(play: Play, at: str, how: str, *, is_exact: bool, victim: int) -> None:
    told = play(3, "lose one", at=at, how=how, is_exact=is_exact, victim=victim)
    assert told[victim] is None
    survivors = [each for each in told if each is not None]
    assert len(survivors) == 2
    for each in survivors:
        assert each["code"] != "committed"
        assert each["after_s"] < QUICK_S
        assert each["is_unchanged"]
        assert each["buffers"] == [[1.0] * 5, 10]
        if is_exact:
            assert each["bits"] == each["expected"]
    assert survivors[0]["bits"] == survivors[1]["bits"]


def test_these_stories_cover_every_operation(play: Play) -> None:
    for is_exact, number in OPERATIONS.items():
        told = play(3, "lose one", at=f"before operation {number + 1}", how="SIGKILL", is_exact=is_exact)
        assert [each["code"] for each in told] == ["committed"] * 3
