"""The benchmarks for GPUs, as far as they can be tried without one: their reports, and MPS that does not work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import recovery, step_overhead
from benchmarks.kills import Taken, overhead_s
from benchmarks.mps import shared_gpu

FAKE_CONTROL = """#!/bin/sh
if [ "$1" = -d ]; then echo started >> {said}; else cat >> {said}; fi
"""


def test_rows_that_were_left_out_are_null_in_the_report_of_backends() -> None:
    results = {
        "nccl_200mb": Taken(survivors=[0.3, 0.5, 0.4], sums=[0.1, 0.2, 0.3]),
        "gloo_20mb": Taken(survivors=[0.2], hung=1),
        "torchrun": Taken(survivors=[60.0, 12.0, 60.0], hung=2),
    }

    assert recovery.report_backends(["nccl", "gloo"], results) == {
        "nccl_20mb_s": None,
        "nccl_200mb_s": 0.4,
        "sum_200mb_s": 0.2,
        "gloo_20mb_s": 0.2,
        "gloo_200mb_s": None,
        "torchrun_s": 60.0,
        "torchrun_short_s": None,
        "hung": 1,
        "torchrun_hung": 2,
    }
    assert set(recovery.report_backends(["nccl", "gloo"], {}).values()) == {None}


def test_the_worse_number_of_workers_counts_in_the_report_of_overheads() -> None:
    two = {"fast_compute": 1.01, "exact_compute": 1.05, "aa_spread": 0.002}
    four = {"fast_compute": 1.02, "exact_compute": 1.03, "aa_spread": 0.011}

    assert step_overhead.worst("nccl", [two, four]) == {
        "nccl_fast_compute": 1.02,
        "nccl_exact_compute": 1.05,
        "nccl_fast_comm": None,
        "nccl_exact_comm": None,
        "aa_spread": 0.011,
    }
    assert step_overhead.worst("gloo", [two])["fast_compute"] == 1.01


def test_without_mps_it_says_so_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with shared_gpu() as variables:
        assert variables == {}

    assert "MPS is off" in capsys.readouterr().out


def test_mps_that_cuda_does_not_use_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said, control = tmp_path / "said", tmp_path / "nvidia-cuda-mps-control"
    control.write_text(FAKE_CONTROL.format(said=said))
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # also where there is a GPU

    with shared_gpu() as variables:
        assert variables == {}
        assert said.read_text().split() == ["started"]

    assert "CUDA does not start under it" in capsys.readouterr().out
    assert said.read_text().split() == ["started", "quit"]


@pytest.mark.parametrize("phase_s", [0.0, 0.02, 0.05])
def test_a_kill_without_overhead_takes_the_rest_of_a_step_with_one_worker_fewer(phase_s: float) -> None:
    smaller_step_s = 2 * 0.05 + 0.01  # one of three workers has two micro-batches; the sum
    assert overhead_s(smaller_step_s - phase_s, phase_s, smaller_step_s) == pytest.approx(0)
    assert overhead_s(0.2, phase_s, smaller_step_s) == pytest.approx(0.09 + phase_s)


def test_a_kill_during_the_sum_leaves_the_dead_workers_micro_batches_and_a_sum() -> None:
    assert overhead_s(0.06, 0.055, 0.11) == pytest.approx(0)
