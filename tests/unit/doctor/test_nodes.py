"""Who measures with whom, and what is said of nodes by what all of them measured."""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import asdict, replace

import pytest

from everstep.doctor.finding import ERROR, OK, WARNING, Finding, ok
from everstep.doctor.node_pairs import pairs, rounds
from everstep.doctor.nodes import LinkReport, NodeReport, fitness_of, judge_node, read_reports
from everstep.wire import Fitness


@pytest.mark.parametrize("num_nodes", range(1, 40))
def test_all_pairs_are_measured_once_and_nobody_has_two_partners(num_nodes: int) -> None:
    made = rounds(num_nodes)
    assert sorted(pair for each in made for pair in each) == sorted(pairs(num_nodes))
    assert len({frozenset(pair) for pair in pairs(num_nodes)}) == len(pairs(num_nodes))
    for each in made:
        busy = [node for pair in each for node in pair]
        assert len(set(busy)) == len(busy)
    assert len(made) <= 7  # however many nodes


@pytest.mark.parametrize("num_nodes", range(2, 20))
def test_every_node_is_measured(num_nodes: int) -> None:
    assert {node for pair in pairs(num_nodes) for node in pair} == set(range(num_nodes))


def test_a_node_between_two_slow_ones_has_another_partner() -> None:
    partners = {frozenset(pair) for pair in pairs(4)}
    assert frozenset({1, 3}) in partners
    assert frozenset({0, 2}) in partners


def measured(
    num_nodes: int, *, slow: Set[int] = frozenset(), cut: Set[frozenset[int]] = frozenset()
) -> list[NodeReport]:
    """All links have 1000 MB/s but those of slow nodes and those that are cut."""
    reports = [
        NodeReport(rank=rank, node=f"n{rank}", address=f"10.0.0.{rank}", gflops=100.0, device="cpu", clock_s=0.0)
        for rank in range(num_nodes)
    ]
    for one, other in pairs(num_nodes):
        link = LinkReport(peer=other, latency_s=1e-4, mb_per_s=10.0 if slow & {one, other} else 1000.0)
        if frozenset({one, other}) in cut:
            link = LinkReport(peer=other, problem="timed out")
        reports[one] = replace(reports[one], links=[*reports[one].links, link])
    return reports


def level(reports: list[NodeReport], rank: int, check: str) -> str:
    (finding,) = (each for each in judge_node(rank, reports) if each.check == check)
    return finding.level


def test_only_the_slow_node_is_slow_and_not_its_neighbours() -> None:
    for slow in (1, 2):
        reports = measured(5, slow={slow})
        assert [level(reports, rank, "network") for rank in range(5)].count(WARNING) == 1
        assert level(reports, slow, "network") == WARNING
        assert [fitness_of(rank, reports).mb_per_s for rank in range(5)].count(10.0) == 1


def test_nodes_between_slow_ones_are_not_blamed() -> None:
    reports = measured(4, slow={0, 2})
    assert [fitness_of(rank, reports).mb_per_s for rank in range(4)] == [10.0, 1000.0, 10.0, 1000.0]


def test_a_bad_way_between_two_good_nodes_is_named_and_nobody_is_unfit() -> None:
    reports = measured(3, cut={frozenset({0, 1})})
    findings = [each for rank in range(3) for each in judge_node(rank, reports) if each.check == "link"]
    assert findings == [
        Finding(
            check="link",
            level=ERROR,
            text="to n1: timed out",
            hint="look between these two: switches, routes, firewalls",
        )
    ]
    assert all(fitness_of(rank, reports) == Fitness(gflops=100.0, mb_per_s=1000.0) for rank in range(3))


def test_who_reaches_nobody_has_failed() -> None:
    reports = measured(3, cut={frozenset({0, 1}), frozenset({0, 2})})
    assert level(reports, 0, "network") == ERROR
    assert fitness_of(0, reports).failure == "it reaches none of 2 nodes: timed out"
    assert not fitness_of(1, reports).failure


def test_a_broken_device_is_a_failure() -> None:
    reports = [replace(measured(1)[0], gflops=None, device_problem="cuda:3 computes wrong numbers")]
    assert level(reports, 0, "speed") == ERROR
    assert fitness_of(0, reports) == Fitness(failure="cuda:3 computes wrong numbers")


def test_slow_devices_other_versions_and_wrong_clocks_stand_out() -> None:
    reports = [replace(each, torch="2.13.0") for each in measured(3)]
    reports[2] = replace(reports[2], gflops=40.0, torch="2.12.0", clock_s=-5.0)
    assert [level(reports, rank, "speed") for rank in range(3)] == [OK, OK, WARNING]
    assert [level(reports, rank, "clock") for rank in range(3)] == [OK, OK, WARNING]
    assert level(reports, 2, "torch") == WARNING


def test_reports_travel_as_json() -> None:
    reports = [replace(measured(2)[0], findings=[ok("python", "3.11")])]
    line = json.dumps({"rank": 0, "reports": [asdict(each) for each in reports]})
    assert read_reports(line) == (0, reports)
