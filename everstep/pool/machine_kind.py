"""The kind of this machine in one line: what the bits of a training depend on. Does not import torch."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from pathlib import Path

from everstep.errors import UsageError
from everstep.launcher.machine import count_cpus, count_gpus
from everstep.wire.pool import MOST_SLOTS

_MOST_CHARS = 120
_MOST_TORCH_CHARS = 60
_CPU_KEYS = ("model name", "CPU implementer", "CPU part")
_OTHERS = re.compile(r"[^A-Za-z0-9_.]+")


def machine_kind(proc: Path = Path("/proc"), *, has_gpus: bool = True) -> str:
    """Such as `x86_64 AMD-EPYC-7763 NVIDIA-H200 torch-2.9.0`. `has_gpus`: trials see them, if there are any."""
    torch = _plain(f"torch-{_torch_version()}")[:_MOST_TORCH_CHARS]  # whole, however long the others are
    parts = [_plain(part) for part in (platform.machine(), _cpu(proc), _gpu(proc) if has_gpus else "") if part]
    return f"{' '.join(parts)[: _MOST_CHARS - len(torch) - 1]} {torch}"


def num_slots(given: str) -> int:
    """The number of slots. `auto`: one per GPU, or one per CPU if there is no GPU."""
    if given == "gpu" and not count_gpus():
        hint = "--slots cpu, or --slots auto; `everstep doctor` shows the GPUs, and CUDA_VISIBLE_DEVICES may hide some"
        raise UsageError("--slots gpu: this machine has no GPU", hint=hint, code="slots-without-gpu")
    counts = {"auto": count_gpus() or count_cpus(), "gpu": count_gpus(), "cpu": count_cpus()}
    if given in counts:
        return min(MOST_SLOTS, counts[given])
    if not given.isascii() or not given.isdigit() or not 0 < int(given) <= MOST_SLOTS:
        hint = f"auto, gpu, cpu, or a whole number from 1 to {MOST_SLOTS}"
        raise UsageError(f"--slots {given}", hint=hint, code="slots-invalid")
    return int(given)


def _plain(part: str) -> str:
    return _OTHERS.sub("-", part).strip("-")


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
