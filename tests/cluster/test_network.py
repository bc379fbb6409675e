"""The hosts of a test cluster: reachable, cut off, cut from each other, and gone without a trace."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.errors import UsageError
from everstep.process import Child, Exit
from everstep.testing import Cluster, can_make_hosts
from everstep.testing.network import Network, _namespaces
from lab.command import until

pytestmark = pytest.mark.skipif(not can_make_hosts(), reason="needs root, iproute2 and nftables")

PORT = 5000


@pytest.fixture
def network() -> Iterator[Network]:
    """Three hosts besides the coordinator's; the first one listens."""
    with Network(3) as network, network.within(1, lambda: socket.create_server((network.address(1), PORT))):
        yield network


SOON_S, AT_LAST_S = 0.3, 60.0  # for a reply that must not come, and for one that may be slow: first packets get lost


def can_reach(network: Network, host: int, timeout_s: float = AT_LAST_S) -> bool:
    def connect() -> bool:
        try:
            socket.create_connection((network.address(1), PORT), timeout=timeout_s).close()
        except OSError:
            return False
        return True

    return network.within(host, connect)


def test_hosts_reach_each_other(network: Network) -> None:
    assert [can_reach(network, host) for host in range(4)] == [True] * 4


def test_a_host_that_is_cut_reaches_nobody_until_mended(network: Network) -> None:
    network.cut(2)
    assert network.is_cut(2)
    assert not can_reach(network, 2, SOON_S)
    assert all(can_reach(network, host) for host in (0, 1, 3))
    network.mend(2)
    assert can_reach(network, 2)


def test_two_hosts_can_lose_each_other_alone(network: Network) -> None:
    network.cut_between(1, 2)
    assert not can_reach(network, 2, SOON_S)
    assert all(can_reach(network, host) for host in (0, 1, 3))
    network.mend_between(1, 2)
    assert can_reach(network, 2)


def test_a_host_that_crashes_takes_its_processes_along(network: Network, tmp_path: Path) -> None:
    up = tmp_path / "up"
    with Child.start([*network.inside(2), "sh", "-c", f"sleep 100 & touch {up}; sleep 100"]) as shell:
        until(up.exists, lambda: "the shell is up")
        network.crash(2)
        assert shell.wait(60.0) == Exit(code=-9)
    assert not can_reach(network, 2, SOON_S)


def our_namespaces() -> list[str]:
    return [name for name in _namespaces() if name.startswith(f"everstep-{os.getpid()}-")]


def test_two_networks_live_side_by_side_and_leave_nothing() -> None:
    with Network(1), Network(1):
        assert len(our_namespaces()) == 6
    assert our_namespaces() == []


def test_what_happens_within_a_host_fails_here(network: Network) -> None:
    with pytest.raises(ZeroDivisionError):
        network.within(1, lambda: 1 / 0)


def test_a_cluster_without_hosts_has_no_cables() -> None:
    with Cluster("unused.py") as cluster, pytest.raises(UsageError, match="has one network"):
        cluster.hosts.cut(1)


def test_workers_must_split_evenly_over_hosts() -> None:
    with (
        pytest.raises(UsageError, match="3 workers do not split evenly over 2 hosts"),
        Cluster("x", workers=3, hosts=2),
    ):
        pass
