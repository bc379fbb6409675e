"""What kind of machine this is, in one line: what the bits of a training depend on. Without importing torch."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from pathlib import Path

from everstep.errors import UsageError
from everstep.launcher.machine import count_cpus, count_gpus
from everstep.wire.pool import MOST_SLOTS

_MOST_CHARS = 120
_CPU_KEYS = ("model name", "CPU implementer", "CPU part")
_OTHERS = re.compile(r"[^A-Za-z0-9_.]+")


def machine_kind(proc: Path = Path("/proc")) -> str:
    """Such as `x86_64 AMD-EPYC-7763 NVIDIA-H200 torch-2.9.0`."""
    parts = [platform.machine(), _cpu(proc), _gpu(proc), f"torch-{_torch_version()}"]
    return " ".join(_OTHERS.sub("-", part).strip("-") for part in parts if part)[:_MOST_CHARS]


def num_slots(given: str) -> int:
    """`auto`: a slot for each GPU, else for each CPU."""
    if given == "auto":
        return min(MOST_SLOTS, count_gpus() or count_cpus())
    if not given.isascii() or not given.isdigit() or not 0 < int(given) <= MOST_SLOTS:
        hint = f"auto, or a whole number from 1 to {MOST_SLOTS}"
        raise UsageError(f"--slots {given}", hint=hint, code="slots-invalid")
    return int(given)


def _cpu(proc: Path) -> str:
    try:
        lines = (proc / "cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return ""
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return " ".join(facts[key] for key in _CPU_KEYS if key in facts)


def _gpu(proc: Path) -> str:
    for path in sorted((proc / "driver/nvidia/gpus").glob("*/information")):
        for line in path.read_text().splitlines():
            if line.startswith("Model:"):
                return line.partition(":")[2].strip()
    return ""


def _torch_version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "none"
