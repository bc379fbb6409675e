"""Short runs of benchmarks, to check their reports: with a few nodes, and the stand-in for NCCL in place of GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(name: str, *options: str) -> dict[str, Any]:
    """The last line of its output."""
    command = [sys.executable, BENCHMARKS / name, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def test_a_kill_is_timed_for_one_backend_and_one_size() -> None:
    report = run("recovery.py", "--backends", "stand-in", "--only", "stand-in_20mb", "--kills", "1")

    assert 0 < report.pop("stand_in_20mb_s") < 60
    assert report.pop("hung") == 0
    assert set(report.values()) == {None}  # everything else was left out


def test_steps_are_compared_with_those_of_ddp_and_ddp_with_itself() -> None:
    options = ("--backend", "stand-in", "--workers", "2", "--rounds", "2", "--only", "comm")
    report = run("step_overhead.py", *options)

    assert report["stand_in_fast_comm"] > 0 and report["stand_in_exact_comm"] > 0 and report["aa_spread"] >= 0
    assert report["stand_in_fast_compute"] is report["stand_in_exact_compute"] is None


def test_nccl_needs_a_gpu() -> None:
    command = [sys.executable, BENCHMARKS / "step_overhead.py", "--backend", "nccl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 2 and "--backend nccl needs --device cuda" in done.stderr


def test_a_join_is_timed_with_its_transfer() -> None:
    report = run("join.py", "--mb", "12", "--rounds", "1", "--only", "1")

    assert report["step_s"] > 0 and report["join_stop_s"] is not None
    assert report["join_8_stop_s"] is report["joined_8_step_s"] is report["transfer_gb_per_s"] is None
    assert run("join.py", "--mb", "12", "--only", "transfer")["transfer_gb_per_s"] > 0


def test_a_coordinator_is_measured_at_rest_and_when_a_worker_dies() -> None:
    report = run("scale.py", "--nodes", "4", "--seconds", "1", "--losses", "1")

    assert (report["nodes"], report["workers"]) == (4, 32)
    assert 0 < report["told_s"] <= report["formed_s"] and report["rss_mb"] > 0
    assert report["coordinator_cores"] >= 0 and report["report_p99_s"] >= 0  # the run is too short for figures


def test_metrics_heartbeats_and_searches_are_in_one_report() -> None:
    small = ("--workers", "20", "--seconds", "1", "--readers", "3", "--points", "20000", "--log-mb", "12")
    report = run("metrics.py", *small)

    asked = "points_per_s heartbeat_p99_s plot_1e6_s log_search_10mb_s log_search_1gb_first_s reader_heartbeat_p99_s"
    assert all(report[name] > 0 for name in asked.split())
    assert (report["readers"], report["readers_cut"]) == (3, 0)
    for each in ("", "quiet_", "reader_"):
        own_s, starved_s = report[f"{each}heartbeat_p99_own_s"], report[f"{each}heartbeat_p99_starved_s"]
        assert own_s >= 0 and abs(own_s + starved_s - report[f"{each}heartbeat_p99_s"]) < 1e-5


def test_a_search_in_a_pool_is_simulated_with_what_was_measured(tmp_path: Path) -> None:
    options = ["--slots", "2", "--trials", "2", "--length", "8", "--full-s", "1", "--fixed"]
    options += ["--trace", str(tmp_path / "trace.json")]
    report = run("pool.py", "--real", "search", *options)

    measured = {"elastic_s", "one_slot_s", "best_fixed_s", "best_fixed_slots", "makespan_s", "simulated_s"}
    assert measured | {"simulated_error"} == set(report["real"])
    assert report["makespan_s"] > 0 and report["simulated_s"] > 0
    assert (tmp_path / "trace.json").exists()
    assert report["move_stop_s"] is report["preempt_s"] is report["pause_s"] is None
    assert report["decision_s"] > 0 and report["fair_error"] <= 0.05
