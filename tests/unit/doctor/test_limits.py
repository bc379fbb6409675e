"""What is left of the limits, read from files as the kernel writes them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from everstep.doctor import limits
from everstep.doctor.world_needs import FILES, THREADS, Need


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("proc/self", "cgroup"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(limits, "PROC", tmp_path / "proc")
    monkeypatch.setattr(limits, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(limits.os, "geteuid", lambda: 0)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 4000 kB\nMemAvailable: 3000 kB\n")
    return tmp_path


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".", 1)).write_text(f"{content}\n")


def test_without_control_groups_free_memory_counts_and_root_may_start_any_number(machine: Path) -> None:
    assert (limits.memory_left(), limits.threads_left()) == (3000 << 10, None)


def test_each_control_group_above_limits_too(machine: Path) -> None:
    (machine / "proc/self/cgroup").write_text("0::/pod/container\n")
    write(machine / "cgroup/pod", pids_max=500, pids_current=480, memory_max=1 << 20, memory_current=1 << 19)
    write(machine / "cgroup/pod/container", pids_max=100, pids_current=10, memory_max="max", memory_current=5)
    assert (limits.threads_left(), limits.memory_left()) == (20, 1 << 19)


def test_a_container_sees_only_the_root_of_its_groups(machine: Path) -> None:
    (machine / "proc/self/cgroup").write_text("8:pids:/docker/1234\n3:memory:/docker/1234\n1:name=systemd:/x\n")
    write(machine / "cgroup/pids", pids_max=64, pids_current=4)
    write(machine / "cgroup/memory", memory_limit_in_bytes=1 << 20, memory_usage_in_bytes=0)
    assert (limits.threads_left(), limits.memory_left()) == (60, 1 << 20)


def test_the_users_limit_counts_all_threads_of_the_user(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.os, "geteuid", lambda: 7)
    monkeypatch.setattr(limits.os, "getuid", lambda: 7)
    monkeypatch.setattr(limits.resource, "getrlimit", lambda _: (50, 50))
    for number, user in ((1, 7), (2, 7), (3, 0)):
        write(machine / f"proc/{number}", status=f"Name:\tx\nUid:\t{user}\t7\t7\t7\nThreads:\t5")
    assert limits.threads_left() == 40


def test_the_largest_world_is_the_last_one_that_fits() -> None:
    for limit in (1024, 20_000):
        largest = int(FILES.largest_world(limit))
        assert FILES.at(largest) <= 0.8 * limit < FILES.at(largest + 1)
    assert FILES.largest_world(10) == 0
    assert FILES.largest_world(math.inf) == THREADS.largest_world(100) == math.inf
    assert Need(fixed=100, per_worker=0).largest_world(50) == 0
