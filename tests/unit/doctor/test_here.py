"""What is said of a machine, by its facts alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from everstep.doctor.facts import Facts, NameFacts, Port, Torch, ask_torch, gather, judge_gpus
from everstep.doctor.finding import ERROR, OK, WARNING, Finding, has_error
from everstep.doctor.here import judge_here, judge_pool_node

GOOD = Facts(
    python="3.11.7",
    torch=Torch(version="2.13.0+cu126", cuda="12.6", num_gpus=8, has_gloo=True),
    num_cpus=64,
    num_gpus=8,
    driver="560.35",
    names=NameFacts(host="n1", addresses=("10.0.0.1",), reverse="n1.example.org"),
    port_range=(32768, 60999),
    listen_problem="",
    shm_bytes=32 << 30,
    log_dir="runs",
    disk_bytes=100 << 30,
    max_files=65536,
    max_files_hard=1 << 20,
    threads_left=30_000,
    memory_bytes=200 << 30,
)


def found(check: str, *, num_nodes: int = 1, **facts: object) -> Finding:
    all_found = judge_here(replace(GOOD, **facts), num_nodes=num_nodes)  # type: ignore[arg-type]
    (finding,) = (each for each in all_found if each.check == check)
    return finding


def test_a_good_machine_is_good() -> None:
    assert {finding.level for finding in judge_here(GOOD, num_nodes=2)} == {OK}


@pytest.mark.parametrize(
    ("check", "level", "told", "facts"),
    [
        ("torch", ERROR, "No module named", {"torch": Torch(problem="ModuleNotFoundError: No module named 'torch'")}),
        ("torch", ERROR, "older than 2.11", {"torch": Torch(version="2.4.1", has_gloo=True)}),
        ("torch", ERROR, "without gloo", {"torch": Torch(version="2.13.0")}),
        ("devices", ERROR, "built for CPUs", {"torch": Torch(version="2.13.0+cpu", has_gloo=True)}),
        ("devices", ERROR, "sees 7", {"torch": replace(GOOD.torch, num_gpus=7)}),
        ("devices", OK, "no GPU, 64 cores", {"num_gpus": 0}),
        ("shared memory", WARNING, "64 MB", {"shm_bytes": 64 << 20}),
        ("shared memory", WARNING, "no /dev/shm", {"shm_bytes": None}),
        ("disk", ERROR, "cannot be written", {"disk_bytes": None}),
        ("disk", ERROR, "50 MB free for runs; 100 MB are needed", {"disk_bytes": 50 << 20}),
        ("disk", WARNING, "2.0 GB free", {"disk_bytes": 2 << 30}),
        ("open files", WARNING, "1024 open files", {"max_files": 1024}),
        ("open files", OK, "no limit", {"max_files": -1}),
        ("open files", OK, "enough for a world of 10480 workers", {}),
        ("threads", OK, "no limit", {"threads_left": None}),
        ("threads", WARNING, "100 more processes and threads", {"threads_left": 100}),
        ("threads", OK, "enough for 2000 workers", {}),
        ("memory", WARNING, "200 MB free", {"memory_bytes": 200 << 20}),
        ("memory", OK, "unknown", {"memory_bytes": None}),
        ("ports", ERROR, "not permitted", {"listen_problem": "Operation not permitted"}),
        ("ports", WARNING, "1000 free ports", {"port_range": (40000, 40999)}),
        ("endpoint", ERROR, "denied", {"port": Port(endpoint="h:80", is_here=True, problem="Permission denied")}),
        ("endpoint", OK, "free", {"port": Port(endpoint="h:80", is_here=True)}),
        ("endpoint", OK, "reached", {"port": Port(endpoint="h:80", is_taken=True)}),
        ("endpoint", WARNING, "no answer", {"port": Port(endpoint="h:80")}),
        ("clock", OK, "within 0.1 s", {"clock_s": -0.05}),
        ("clock", WARNING, "2.5 s from", {"clock_s": -2.5}),
        ("clock", ERROR, "300.0 s from", {"clock_s": 300.0}),
        ("coordinator", ERROR, "refused", {"coordinator_problem": "connection refused"}),
    ],
)
def test_each_trouble_is_told_with_a_way_out(check: str, level: str, told: str, facts: dict[str, object]) -> None:
    finding = found(check, **facts)
    assert (finding.level, told in finding.text) == (level, True), finding
    assert bool(finding.hint) == (level != OK)


def test_a_name_that_leads_nowhere_matters_to_several_nodes_only() -> None:
    for names in (
        NameFacts(host="n1", addresses=("127.0.1.1",)),
        NameFacts(host="n1", problem="Name or service not known"),
    ):
        assert found("name", names=names).level == OK
        assert found("name", names=names, num_nodes=2).level == WARNING
        assert found("name", names=replace(names, interface="eth0"), num_nodes=2).level == OK


def test_more_open_files_than_the_hard_limit_are_not_advised() -> None:
    assert "ulimit -n 2048 " in found("open files", max_files=1024, max_files_hard=2048).hint


def test_a_limit_is_enough_for_a_small_world_and_not_for_a_large_one() -> None:
    small, large = (found("open files", max_files=5_000, num_nodes=number) for number in (2, 128))
    assert small.level == OK
    assert large.level == WARNING and "a worker in a world of 1024 needs 5148 files: run ulimit -n 65536" in large.hint
    assert found("threads", threads_left=100, num_gpus=1).level == OK
    assert found("memory", memory_bytes=1 << 30, num_nodes=100).level == WARNING, "8 workers of a world of 800"


def test_this_machine_can_be_looked_at(tmp_path: Path) -> None:
    facts = gather(tmp_path / "not" / "there", torch=GOOD.torch)
    assert facts.disk_bytes
    assert facts.num_cpus > 0
    assert not facts.listen_problem
    assert facts.memory_bytes
    assert facts.threads_left is None or facts.threads_left > 0


def test_an_interpreter_without_torch_says_why(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n")
    python.chmod(0o755)
    assert ask_torch(str(python)).problem == "ModuleNotFoundError: No module named 'torch'"
    assert "No such file" in ask_torch(str(tmp_path / "none")).problem


def test_errors_are_errors() -> None:
    assert not has_error(judge_here(GOOD))
    assert has_error(judge_here(replace(GOOD, disk_bytes=None)))


@pytest.mark.parametrize(
    ("check", "level", "facts"),
    [
        ("devices", OK, {}),
        ("devices", ERROR, {"gpu_problem": "GPU 3 has 2 uncorrected memory errors"}),
        ("disk", ERROR, {"disk_bytes": 50 << 20}),
        ("clock", ERROR, {"clock_s": 3600.0}),
        ("clock", WARNING, {"clock_s": 2.0}),
        ("shared memory", WARNING, {"shm_bytes": 64 << 20}),
        ("memory", WARNING, {"memory_bytes": 64 << 20}),
    ],
)
def test_what_a_node_of_a_pool_needs(check: str, level: str, facts: dict[str, object]) -> None:
    findings = judge_pool_node(replace(GOOD, **facts), num_slots=8)  # type: ignore[arg-type]
    assert [each.level for each in findings if each.check == check] == [level]
    assert all(each.hint for each in findings if each.level != OK)


@pytest.mark.parametrize(
    ("told", "is_good", "problem"),
    [
        ("0, 0\n1, 0\n", True, ""),
        ("0, [N/A]\n", True, ""),
        ("0, 0\n1, 4\n", True, "GPU 1 has 4 uncorrected memory errors"),
        (
            "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.",
            False,
            "nvidia-smi failed: Unable",
        ),
    ],
)
def test_gpus_by_what_nvidia_smi_says(told: str, is_good: bool, problem: str) -> None:
    found = judge_gpus(told, is_good=is_good)
    assert found.startswith(problem) and bool(found) == bool(problem)
