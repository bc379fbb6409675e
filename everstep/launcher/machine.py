"""What this machine has for workers: GPUs and cores, as far as this process may use them, and where others reach it.
Without torch."""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path

from everstep import env
from everstep.errors import UsageError


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
    (127.0.1.1): then it is the address that it would reach the world from; nothing is sent."""
    try:
        addresses = [str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except OSError as error:
        raise UsageError(f"{name} has no address: {error.strerror}", hint="--host takes a name or an address") from None
    is_local = name == "localhost" or name in addresses
    outer = [each for each in addresses if is_local or not ipaddress.ip_address(each).is_loopback]
    return outer[0] if outer else _outgoing_address() or addresses[0]


def _outgoing_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # kept for examples: nobody has it
        except OSError:
            return None
        return str(probe.getsockname()[0])
