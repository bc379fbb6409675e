"""What trials find on this node: its image, its Python, and a slot's share of memory and cores. No torch."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata

from everstep import env
from everstep.launcher.machine import count_cpus
from everstep.wire.pool import NodeEnvironment


def node_environment(num_slots: int, memory_bytes: int) -> NodeEnvironment:
    """`memory_bytes`: of the whole node."""
    return NodeEnvironment(
        image=env.value(env.IMAGE) or "",
        python=platform.python_version(),
        prefix=os.path.realpath(sys.prefix),
        torch=_torch_version(),
        slot_memory_bytes=memory_bytes // num_slots,
        slot_cpus=max(1, count_cpus() // num_slots),
    )


def _torch_version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
