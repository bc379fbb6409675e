"""A profile has the batches that were asked for; samples of the machine say what it does."""

from __future__ import annotations

import json
import queue
from dataclasses import replace

import torch
from torch.profiler import schedule

from everstep.errors import UsageError
from everstep.pytorch.profiling import Profiler, ProfilerSettings, profiler_arguments, sampling
from everstep.pytorch.reporting import Reporter
from everstep.pytorch.train_units import Batch
from lab.refused import refused


def profiled(folder, settings, num_batches):
    """Which batches are in each trace: batch n multiplies n + 2 rows."""
    profiler = Profiler(settings, folder)
    for batch in range(num_batches):
        profiler.step(batch)
        with torch.profiler.record_function(f"batch {batch}"):
            torch.ones(batch + 2, 2) @ torch.ones(2, 2)
    profiler.step(num_batches)
    profiler.close()
    traces = [json.loads(path.read_text()) for path in sorted(folder.glob("*.pt.trace.json"))]
    names = [{each.get("name", "") for each in trace["traceEvents"]} for trace in traces]
    return [sorted(int(name.split()[1]) for name in each if name.startswith("batch ")) for each in names]


def test_nothing_is_profiled_unless_asked_for(tmp_path):
    assert profiled(tmp_path / "tensorboard", ProfilerSettings(), 3) == []
    assert not (tmp_path / "tensorboard").exists()


def test_the_batches_between_are_profiled_both_ends_included(tmp_path):
    settings = ProfilerSettings(is_enabled=True, begin_on_batch=2, end_after_batch=4)
    assert profiled(tmp_path, settings, 8) == [[2, 3, 4]]


def test_a_fit_that_ends_first_is_written_too(tmp_path):
    assert profiled(tmp_path, ProfilerSettings(is_enabled=True, begin_on_batch=1, end_after_batch=99), 3) == [[1, 2]]


def test_without_an_end_traces_are_written_on_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr("everstep.pytorch.profiling.BATCHES_PER_TRACE", 2)
    traces = profiled(tmp_path, ProfilerSettings(is_enabled=True), 5)
    assert traces[:2] == [[0, 1], [2, 3]]
    assert traces[2] == [4]


def test_arguments_of_torchs_profiler_are_passed_on(tmp_path):
    settings = profiler_arguments(schedule=schedule(wait=1, warmup=1, active=2, repeat=1), with_stack=False)
    assert profiled(tmp_path, settings, 8) == [[2, 3]]
    assert replace(ProfilerSettings(is_enabled=True), arguments=settings.arguments).is_wanted(0)


def test_a_profile_of_no_batch_is_refused():
    with refused("no-batch-to-profile", UsageError):
        ProfilerSettings(is_enabled=True, begin_on_batch=5, end_after_batch=4)
    with refused("profiler-arguments-without-names", UsageError):
        profiler_arguments("cpu", "cuda")


def test_the_machine_is_sampled_into_the_records(tmp_path):
    fit = Reporter(
        folder=tmp_path, is_chief=lambda: True, length=Batch(1), length_batches=1, has_tensorboard=False, metric=None,
        job_metrics=None,
    )  # fmt: skip
    heard = queue.Queue()

    def tell(metrics):
        fit.system(metrics)
        heard.put(metrics)

    with sampling(tell, period_s=0.01):
        for _ in range(3):
            heard.get(timeout=60)
    fit.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) >= 3 and {each["kind"] for each in lines} == {"system"}
    for each in lines:
        assert each["metrics"]["memory_mb"] > 10 and each["metrics"]["machine_free_memory_mb"] > 0
        assert each["metrics"]["cpu_share"] >= 0 and each["metrics"]["machine_cpu_share"] >= 0
