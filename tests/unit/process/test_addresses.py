"""Where others reach this machine, by IPv4 and by IPv6."""

from __future__ import annotations

import socket

import pytest

from everstep.addresses import address_towards, can_bind, is_here, listen, own_address
from everstep.errors import UsageError
from everstep.launcher.probe import Probe

LOOPBACK = [
    "127.0.0.1",
    pytest.param("::1", marks=pytest.mark.skipif(not can_bind("::1"), reason="this machine has no IPv6")),
]


@pytest.mark.parametrize("address", LOOPBACK)
def test_an_address_of_this_machine_is_taken_as_it_is(address) -> None:
    assert own_address(address) == address
    assert is_here(address)


def test_localhost_is_here() -> None:
    assert own_address("localhost") in ("127.0.0.1", "::1")


@pytest.mark.parametrize("address", LOOPBACK)
def test_a_node_finds_its_own_address_by_its_coordinators(address) -> None:
    host = f"[{address}]" if ":" in address else address

    assert address_towards(address) == address_towards(f"http://{host}:7070") == address


@pytest.mark.parametrize("address", LOOPBACK)
def test_others_can_connect_where_a_node_listens(address) -> None:
    with listen(address) as listener:
        socket.create_connection((address, listener.getsockname()[1]), 5.0).close()
        assert not can_bind(address, listener.getsockname()[1])


@pytest.mark.parametrize("address", LOOPBACK)
def test_agents_reach_each_other(address) -> None:
    probe = Probe(address)
    probe.open()
    try:
        socket.create_connection((address, probe.port), 5.0).close()
    finally:
        probe.close()


@pytest.mark.parametrize("find", [own_address, address_towards, is_here])
def test_a_name_that_leads_nowhere_is_refused(find) -> None:
    with pytest.raises(UsageError) as error:
        find("no-such-host.invalid")
    assert error.value.code == "host-has-no-address"
