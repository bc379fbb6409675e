"""How much memory there is for a copy of the state, and what to do where there is little.

Deciding is pure; looking reads /proc and the limits of this process's cgroups, of both kinds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SPARE_SHARE = 0.1  # of what is free is left to training …
SPARE_BYTES = 256 << 20  # … or this, if it is less
_NO_LIMIT = 1 << 60  # the kernel's word for it is larger still


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """What may still be taken, and what sets the bound."""

    free_bytes: int
    bound: str = "the machine's memory"
    remedy: str = "use a machine with more memory, or split the state over more workers"


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """2 slots: the last state stays whole while the next is copied. 1: it does not. 0: nothing is copied."""

    num_slots: int
    reason: str


def decide_room(slot_bytes: int, memory: Memory, *, held_bytes: int = 0) -> Room:
    """How many slots of this size there is room for; `held_bytes` are taken by slots already."""
    usable = memory.free_bytes + held_bytes - min(SPARE_BYTES, int(memory.free_bytes * SPARE_SHARE))
    wanted = f"two copies of {_mb(slot_bytes)}"
    if usable >= 2 * slot_bytes:
        return Room(num_slots=2, reason=f"{wanted} fit into {_mb(usable)}")
    have = f"{_mb(memory.free_bytes + held_bytes)} are free ({memory.bound})"
    if usable >= slot_bytes:
        lost = "only one is kept: a worker that dies while it is filled leaves the last checkpoint on storage alone"
        return Room(num_slots=1, reason=f"{wanted} do not fit, {have}; {lost}. To have both: {memory.remedy}")
    lost = "training waits until each checkpoint is written"
    return Room(num_slots=0, reason=f"not even one copy of {_mb(slot_bytes)} fits, {have}; {lost}. {memory.remedy}")


def look_for_memory(root: Path = Path("/")) -> Memory:
    """The least of what the machine and all cgroups around this process leave."""
    found = [Memory(free_bytes=_machine_bytes(root)), *_unified(root), *_classic(root)]
    return min(found, key=lambda memory: memory.free_bytes)


def _machine_bytes(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _NO_LIMIT


def _unified(root: Path) -> list[Memory]:
    return _limits(root / "sys/fs/cgroup", _group(root, ""), limit="memory.max", usage="memory.current")


def _classic(root: Path) -> list[Memory]:
    names = {"limit": "memory.limit_in_bytes", "usage": "memory.usage_in_bytes"}
    return _limits(root / "sys/fs/cgroup/memory", _group(root, "memory"), **names)


def _group(root: Path, controller: str) -> str:
    """This process's group in the hierarchy that has the controller; "" stands for the unified one."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return "/"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"


def _limits(top: Path, group: str, *, limit: str, usage: str) -> list[Memory]:
    found = []
    folder = top / group.strip("/")
    for each in (folder, *folder.parents):
        if not each.is_relative_to(top):
            break
        try:
            allowed = (each / limit).read_text().strip()
            used = int((each / usage).read_text()) - _cache_bytes(each / "memory.stat")
        except (OSError, ValueError):  # no such group in this container, or the root, which has no limit
            continue
        if allowed != "max" and int(allowed) < _NO_LIMIT:
            found.append(
                Memory(
                    free_bytes=max(0, int(allowed) - used),
                    bound=f"the memory limit of {_mb(int(allowed))} of this container or job",
                    remedy="raise its memory limit (docker --memory, resources.limits.memory, Slurm --mem)",
                )
            )
    return found


def _cache_bytes(stat: Path) -> int:
    """Of files, which the kernel gives up when memory is short; shared memory is not among them."""
    wanted = {"inactive_file", "active_file"}
    fields = (line.split() for line in stat.read_text().splitlines())
    return sum(int(value) for name, value in fields if name in wanted)


def _mb(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
