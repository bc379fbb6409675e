"""What this machine has for workers: GPUs and cores, as far as this process may use them, and where others reach it.
Without torch."""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path

from everstep import env
from everstep.errors import UsageError

_NOBODY = "192.0.2.1"  # kept for examples


def count_gpus(devices: Path = Path("/dev")) -> int:
    """NVIDIA's device files, or fewer if CUDA_VISIBLE_DEVICES names fewer."""
    present = len(list(devices.glob("nvidia[0-9]*")))
    if (visible := env.visible_gpus()) is None:
        return present
    named = [name for name in visible.split(",") if name.strip() and not name.strip().startswith("-")]
    return min(present, len(named))


def count_cpus() -> int:
    return len(os.sched_getaffinity(0))


def own_address(name: str) -> str:
    """Where others reach this machine, by a name or an address of it. Many a machine's name leads to itself alone
    (127.0.1.1): then it is the address that it would reach the world from. If the name is another machine's, it is
    the address that it would reach that from. Nothing is sent."""
    try:
        addresses = [str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except OSError as error:
        raise UsageError(f"{name} has no address: {error.strerror}", hint="--host takes a name or an address") from None
    if not _is_here(addresses[0]):
        return _outgoing_address(addresses[0]) or addresses[0]
    is_local = name == "localhost" or name in addresses
    outer = [each for each in addresses if is_local or not ipaddress.ip_address(each).is_loopback]
    return outer[0] if outer else _outgoing_address(_NOBODY) or addresses[0]


def _is_here(address: str) -> bool:
    with socket.socket(_family(address), socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def _outgoing_address(target: str) -> str | None:
    with socket.socket(_family(target), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
