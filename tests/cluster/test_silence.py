"""Workers, nodes and hosts that fall silent: frozen for a moment, frozen for good, cut off, cut off from each other."""

from __future__ import annotations

import signal

import pytest

from everstep.testing import can_make_hosts
from everstep.wire import Policy
from lab.stage import Stage, pass_time

LEASE_S = 6.0  # longer than anything that is not frozen for good stands still
STRICT = Policy(lease_s=LEASE_S, arrive_s=60.0, stall_s=60.0)
STALLING = Policy(lease_s=60.0, arrive_s=60.0)  # for workers that are all alive and cannot reach each other
needs_hosts = pytest.mark.skipif(not can_make_hosts(), reason="needs root, iproute2 and nftables")


def test_a_short_freeze_is_no_loss_and_a_long_one_is() -> None:
    with Stage("--steps", 24, "--micro-batches", 6, gates=[12], workers=3, policy=STRICT) as cluster:
        cluster.wait("step.committed", worker="w1", step=5)
        cluster.freeze("w1")
        pass_time(0.5)
        cluster.thaw("w1")
        cluster.wait_at_gate(12, "w0", "w1", "w2")
        assert cluster.events("generation.closed") == []

        cluster.freeze("w1")
        cluster.open_gate(12)
        lost = cluster.wait("worker.lost", worker="w1")
        cluster.wait("worker.exited", worker="w1", signal="SIGKILL")
        result = cluster.finish_undisturbed()
    assert "no proof of life for 6." in lost["reason"]
    assert len(result.outputs) == 2


def test_a_frozen_node_comes_back_as_a_newcomer() -> None:
    gates = [5, 10, 20, 28]
    with Stage("--steps", 30, "--micro-batches", 6, gates=gates, workers=2, policy=STRICT, max_restarts=1) as cluster:
        cluster.wait_at_gate(5)
        (guest,) = cluster.add()
        cluster.wait_ready(guest)
        cluster.open_gate(5)
        cluster.wait("regroup.settled", worker=guest, size=3)
        cluster.wait_at_gate(10, "w0", "w1", guest)  # not at the next: what it finds open it can leave by itself
        cluster.freeze(guest, with_agent=True)
        cluster.open_gate(10)
        lost = cluster.wait("worker.lost", worker=guest)
        cluster.wait_at_gate(20, "w0", "w1")
        cluster.thaw(guest)
        # Either it tells first that it is back, or its agent kills it first and starts another. It may even tell first
        # and be killed then, if its agent had the order already: so the others wait for it a second time.
        for gate in (20, 28):
            cluster.wait_at_gate(gate, "w0", "w1")
            cluster.until(lambda: any(map(cluster.is_ready, guests(cluster))), "a newcomer, or one that has joined")
            cluster.open_gate(gate)
        cluster.wait("regroup.settled", size=3, t=lambda t: t > lost["t"])
        result = cluster.finish_undisturbed()
    assert len(result.outputs) == 3


def guests(cluster: Stage) -> list[str]:
    """All workers but the first two."""
    return [each.worker for each in cluster.view().workers][2:]


def test_workers_of_a_frozen_agent_speak_for_themselves() -> None:
    with Stage("--steps", 16, "--micro-batches", 6, gates=[5], workers=2, policy=STRICT) as cluster:
        cluster.wait_at_gate(5, "w0", "w1")
        agent = cluster._node_of("w0").agent
        agent.signal(signal.SIGSTOP)
        pass_time(2 * LEASE_S)
        assert {cluster.status(name) for name in ("w0", "w1")} == {"member"}
        agent.signal(signal.SIGCONT)
        cluster.open_gate(5)
        result = cluster.finish_undisturbed()
    assert len(result.outputs) == 2


@needs_hosts
def test_a_host_that_is_cut_off_is_lost_until_it_is_mended() -> None:
    with Stage("--steps", 30, "--micro-batches", 6, gates=[5, 20], hosts=3, workers=3, policy=STRICT) as cluster:
        cluster.wait_at_gate(5, "w0", "w1", "w2")
        cluster.hosts.cut(3)
        cluster.open_gate(5)
        cluster.wait("worker.lost", worker="w2")
        cluster.wait("regroup.settled", size=2)
        cluster.wait_at_gate(20, "w0", "w1")
        cluster.hosts.mend(3)
        cluster.until(lambda: cluster.status("w2") in ("waiting", "dead"), "w2 back, or killed by its agent")
        cluster.open_gate(20)
        cluster.finish_undisturbed()


@needs_hosts
def test_of_two_hosts_that_lost_each_other_one_goes_on() -> None:
    with Stage("--steps", 16, "--micro-batches", 6, gates=[5], hosts=3, workers=3, policy=STALLING) as cluster:
        cluster.wait_at_gate(5, "w0", "w1", "w2")
        cluster.hosts.cut_between(2, 3)
        cluster.open_gate(5)
        cluster.wait("regroup.settled", size=2)
        result = cluster.finish_undisturbed()
    assert len(result.outputs) == 2
