"""Which GPUs measure NCCL with each other, and which pair, GPU or version is named as a problem."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace

import pytest

from everstep.doctor.finding import ERROR, OK, WARNING, Finding
from everstep.doctor.gpus import Gpu, GpuLink, gpu_rounds, gpus_of, judge_gpu_links
from everstep.doctor.nodes import NodeReport, judge_node, read_reports

NAMES = ("a", "b", "c", "d")
Named = tuple[str, int]  # node and number


def gpus(*counts: int) -> list[Gpu]:
    return gpus_of(NAMES[: len(counts)], counts)


def measured(
    *counts: int, slow: Mapping[frozenset[Named], float] | None = None, slow_gpu: Named | None = None, broken: str = ""
) -> list[GpuLink]:
    """200 GB/s within a node, 22 between nodes, except for links that are slow, at 3.1 or as given, or broken."""
    links = []
    for one, other in (pair for each in gpu_rounds(gpus(*counts)) for pair in each):
        ends = frozenset({(one.node, one.number), (other.node, other.number)})
        gb_per_s = 200.0 if one.rank == other.rank else 22.0
        gb_per_s = (slow or {}).get(ends, 3.1 if slow_gpu in ends else gb_per_s)
        is_broken = bool(broken) and ends in (slow or {})
        links.append(
            GpuLink(one=one, other=other, gb_per_s=0.0 if is_broken else gb_per_s, problem=broken if is_broken else "")
        )
    return links


def said(rank: int, links: list[GpuLink]) -> list[tuple[str, str]]:
    findings = judge_gpu_links(rank, links, num_gpus=8)
    assert all(each.check == "nccl" and (each.level == OK or each.hint) for each in findings)
    return [(each.level, each.text) for each in findings]


# --- who measures with whom ---


@pytest.mark.parametrize("counts", [(), (1,), (2,), (8,), (1, 1), (8, 8), (4, 2, 1), (8, 0, 8), (2, 2, 2, 2), (0, 1)])
def test_every_gpu_is_measured_and_no_node_has_two_pairs_at_a_time(counts: tuple[int, ...]) -> None:
    made = gpu_rounds(gpus(*counts))
    for each in made:
        busy = [rank for one, other in each for rank in {one.rank, other.rank}]
        assert len(set(busy)) == len(busy)
    pairs = [frozenset(pair) for each in made for pair in each]
    assert len(set(pairs)) == len(pairs)
    assert all(len(pair) == 2 for pair in pairs)
    if sum(counts) > 1:
        assert {gpu for pair in pairs for gpu in pair} == set(gpus(*counts))
    within = [pair for pair in pairs if len({gpu.rank for gpu in pair}) == 1]
    assert len(within) == sum(count * (count - 1) // 2 for count in counts)


def test_nodes_measure_within_themselves_side_by_side() -> None:
    assert len(gpu_rounds(gpus(4, 4))) == 6 + 4  # all pairs of a node, then the four between the nodes


# --- what is said of it ---


def test_good_links_are_reported_with_their_speed() -> None:
    assert said(0, measured(4, 4)) == [
        (OK, "6 pairs of GPUs within the node: 200 GB/s"),
        (OK, "4 pairs of GPUs between nodes: 22 GB/s"),
    ]
    assert said(0, measured(2)) == [(OK, "1 pair of GPUs within the node: 200 GB/s")]


def test_a_slow_pair_between_nodes_is_named_once_with_what_the_others_reach() -> None:
    links = measured(8, 8, slow={frozenset({("a", 5), ("b", 5)}): 3.1})
    assert said(0, links)[1:] == [(WARNING, "GPU 5 of a to GPU 5 of b: 3.1 GB/s; the others reach 22 GB/s")]
    assert said(1, links)[1:] == [(OK, "7 pairs of GPUs between nodes: 22 GB/s")]


def test_a_slow_pair_within_a_node_is_compared_with_those_of_all_nodes() -> None:
    links = measured(2, 2, 2, slow={frozenset({("b", 0), ("b", 1)}): 24.0})
    assert said(1, links)[0] == (WARNING, "GPU 0 of b to GPU 1 of b: 24 GB/s; the others reach 200 GB/s")
    (finding,) = (each for each in judge_gpu_links(1, links, num_gpus=6) if each.level == WARNING)
    assert "nvidia-smi topo -m" in finding.hint


def test_a_gpu_whose_links_are_all_slow_is_named_instead_of_each_of_them() -> None:
    links = measured(8, slow_gpu=("a", 2))
    assert said(0, links) == [
        (WARNING, "GPU 2 of a: 3.1 GB/s at best, to 7 others within the node; the others reach 200 GB/s")
    ]


def test_a_pair_that_does_not_connect_is_an_error() -> None:
    links = measured(4, slow={frozenset({("a", 0), ("a", 3)}): 0.0}, broken="64 MB did not arrive within 15 s")
    assert said(0, links) == [
        (ERROR, "GPU 0 of a to GPU 3 of a: 64 MB did not arrive within 15 s; the others reach 200 GB/s")
    ]
    links = measured(1, 1, slow={frozenset({("a", 0), ("b", 0)}): 0.0}, broken="no route")
    assert said(0, links) == [(ERROR, "GPU 0 of a to GPU 0 of b: no route; no other pair was measured")]


def test_the_doctor_says_what_was_not_measured() -> None:
    assert judge_gpu_links(0, [], num_gpus=0) == [Finding(check="nccl", level=OK, text="not measured: there is no GPU")]
    assert judge_gpu_links(0, [], num_gpus=1)[0].text == "not measured: there is only one GPU"
    assert judge_gpu_links(2, measured(2, 2, 0), num_gpus=4)[0].text == "not measured: this node has no GPU"


# --- as part of what is said of a node ---


def reports(num_nodes: int = 3) -> list[NodeReport]:
    return [
        NodeReport(
            rank=rank, node=NAMES[rank], address="10.0.0.1", gflops=1.0, device="cuda:0", torch="2.13.0",
            driver="570.1", nccl="2.28.9", num_gpus=1,
            gpu_links=[link for link in measured(*[1] * num_nodes) if link.one.rank == rank],
        )
        for rank in range(num_nodes)
    ]  # fmt: skip


def without_network(found: list[Finding]) -> dict[str, Finding]:
    return {each.check: each for each in found if each.check not in ("speed", "gloo", "network")}


def judged(rank: int, given: list[NodeReport]) -> dict[str, Finding]:
    from everstep.doctor.nodes import LinkReport

    linked = [replace(each, links=[LinkReport(peer=(each.rank + 1) % 3, mb_per_s=9.0)]) for each in given]
    return without_network(judge_node(rank, linked))


def test_versions_that_differ_are_named_with_the_way_out() -> None:
    given = reports()
    given[2] = replace(given[2], nccl="2.27.3", driver="560.35")
    found = judged(2, given)
    assert found["NCCL version"].text == "2.27.3, while most nodes have 2.28.9"
    assert "install the same torch on all nodes" in found["NCCL version"].hint
    assert found["driver"].text == "560.35, while most nodes have 570.1"
    assert judged(0, given).keys() == {"nccl"}


def test_a_node_without_gpus_has_no_version_to_differ() -> None:
    given = reports()
    given[1] = replace(given[1], nccl="", driver="", num_gpus=0)
    assert judged(1, given).keys() == {"nccl"}


def test_a_process_that_died_while_it_measured_is_an_error_with_its_last_line() -> None:
    given = reports()
    given[1] = replace(given[1], gpu_problem="GPU 0 of b: exit code 1, out of memory", gpu_links=[])
    found = judged(1, given)["nccl"]
    assert (found.level, found.text) == (ERROR, "not measured: GPU 0 of b: exit code 1, out of memory")
    assert 'backend="gloo"' in found.hint


def test_links_of_gpus_travel_as_json() -> None:
    line = json.dumps({"rank": 0, "reports": [asdict(each) for each in reports()]})
    assert read_reports(line) == (0, reports())
