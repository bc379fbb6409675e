"""Sums in levels: between nodes, every byte travels once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from everstep.testing import can_make_hosts
from lab.command import ROOT, Command
from lab.stage import Stage

pytestmark = pytest.mark.skipif(not can_make_hosts(), reason="needs root, iproute2 and nftables")


def test_two_workers_on_each_node_send_half_of_the_bytes_and_messages_and_get_the_same_bits(tmp_path: Path) -> None:
    options = ["--nodes", "2", "--workers", "2", "--mb", "2", "--steps", "3", "--rounds", "1"]
    with Command(sys.executable, ROOT / "benchmarks/levels.py", *options, folder=tmp_path) as benchmark:
        told = json.loads(benchmark.finish().splitlines()[-1])
    assert told["are_bits_equal"]
    assert told["messages_ratio"] == 2.0
    assert told["wire_ratio"] == pytest.approx(2.0, abs=0.1)


def test_a_worker_and_then_a_whole_node_are_lost() -> None:
    """Two nodes have two workers each; after the first loss, two workers and one; in the end, one node is left."""
    args = ["--steps", 30, "--micro-batches", 6, "--micro-batch-s", 0.01]
    with Stage(*args, gates=[25], hosts=2, workers=4) as cluster:
        victim = cluster.rank(1)
        cluster.wait("step.committed", worker=victim, step=5)
        cluster.kill(victim)
        later = cluster.wait("regroup.settled", size=3)["generation"]
        cluster.wait("step.committed", generation=later, step=lambda step: step >= 12)
        host = next(number for number, name in ((1, "node1"), (2, "node2")) if victim not in cluster._workers_of(name))
        cluster.hosts.crash(host)
        cluster.open_gate(25)
        cluster.wait("regroup.settled", size=1)
        cluster.finish_undisturbed()
