"""The one door to this machine's own addresses, IPv4 and IPv6: which one others reach it by, and listening there.

Nothing is sent to find out. Knows nothing of the coordinator."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any
from urllib.parse import urlsplit

from everstep.errors import UsageError

_ANY_PORT = 9
_DOCUMENTATION = "192.0.2.1"  # kept for examples, so no machine has it


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def address_towards(target: str) -> str:
    """The address that this machine reaches another from. `target`: its name or address, or a URL with it."""
    host = (urlsplit(target).hostname or "") if "://" in target else target
    problem: OSError | None = None
    for family, kind, _, _, there in _resolved(host, _ANY_PORT, socket.SOCK_DGRAM):
        with socket.socket(family, kind) as probe:
            try:
                probe.connect(there)
                return str(probe.getsockname()[0])
            except OSError as error:  # of a family that this machine has no route for
                problem = problem or error
    raise UsageError(f"no route to {host}: {problem}", code="no-route-to-host")


def own_address(name: str) -> str:
    """Where others reach this machine, by a name or an address of it. The name of many machines leads only to
    themselves (127.0.1.1): then it is the address that this machine would reach the world from. If the name is another
    machine's, it is the address that this one would reach that from."""
    addresses = [str(found[4][0]) for found in _resolved(name)]
    if not can_bind(addresses[0]):
        return _towards(addresses[0]) or addresses[0]
    is_local = name == "localhost" or name in addresses
    outer = [each for each in addresses if is_local or not ipaddress.ip_address(each).is_loopback]
    return outer[0] if outer else _towards(_DOCUMENTATION) or addresses[0]


def is_here(host: str) -> bool:
    """Whether a name or an address is this machine's: only then can a process listen there."""
    return any(can_bind(str(target[0])) for *_, target in _resolved(host))


def can_bind(address: str, port: int = 0, *, is_reused: bool = False) -> bool:
    """`is_reused`: also a port whose last connections are still closing."""
    with socket.socket(family_of(address), socket.SOCK_STREAM) as probe:
        if is_reused:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True


def listen(address: str, port: int = 0, *, backlog: int = 128) -> socket.socket:
    """0: on any free port."""
    return socket.create_server((address, port), family=family_of(address), backlog=backlog)


class ReservedPort:
    """A free port, to be used in a while: as long as it is bound here, no other process gets it."""

    def __init__(self, address: str) -> None:
        self._family = family_of(address)
        self._socket = self._bind()

    @property
    def number(self) -> int:
        return int(self._socket.getsockname()[1])

    def renew(self) -> None:
        """Reserve another one, and release the one before."""
        before, self._socket = self._socket, self._bind()
        before.close()

    def close(self) -> None:
        self._socket.close()

    def _bind(self) -> socket.socket:
        reserved = socket.socket(self._family)
        reserved.bind(("", 0))
        return reserved


def _towards(target: str) -> str | None:
    try:
        return address_towards(target)
    except UsageError:
        return None


def _resolved(host: str, port: int = 0, kind: socket.SocketKind = socket.SOCK_STREAM) -> list[tuple[Any, ...]]:
    try:
        return [*socket.getaddrinfo(host, port, type=kind)]
    except OSError as error:
        hint = "give a name that this machine can resolve, or an address"
        problem = f"{host} has no address: {error.strerror}"
        raise UsageError(problem, hint=hint, code="host-has-no-address") from None
