"""An agent's samples of its node and its workers become series of the job."""

from __future__ import annotations

import os
import sys
import types

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.errors import Refused
from everstep.launcher import system_metrics
from everstep.launcher.system_metrics import SystemSampler
from lab.command import until


def test_the_node_and_each_worker_have_series_by_time(play):
    one = play()
    one.coordinator.report("n0", wire.AgentReport(incarnation="i", node="n0", workers=[], wait_s=0.0))
    sampler = SystemSampler(
        lambda: Coordinator(one.coordinator.url, one.server.token, one.coordinator.job),
        "n0",
        lambda: {"w0": os.getpid(), "w1": 2**22 + 1},
        period_s=0.05,
    )
    sampler.open()
    names = {f"system/n0/{name}" for name in ("cpu_cores", "memory_mb", "network_in_mb_per_s", "network_out_mb_per_s")}
    names |= {"system/w0/cpu_cores", "system/w0/memory_mb"}
    until(lambda: {each.name for each in one.coordinator.series().series} >= names, lambda: "no samples arrived")
    sampler.close()

    found = {each.name: each for each in one.coordinator.series().series}
    assert found.keys() == names  # w1 is not there, which is no reason to fail
    assert found["system/n0/memory_mb"].last > found["system/w0/memory_mb"].last > 1
    assert abs(found["system/n0/cpu_cores"].last_step - found["system/n0/cpu_cores"].last_time) < 2


def test_a_node_that_never_came_is_refused(play):
    reports = wire.MetricReports(reports=[wire.MetricReport(step=1, time=1.0, values={"cpu_cores": 1.0})])
    with pytest.raises(Refused, match="there is no node n7"):
        play().coordinator.report_node_metrics("n7", reports)


def test_gpus_are_sampled_where_the_library_is_installed(monkeypatch):
    assert system_metrics.gpu_values.__doc__
    fake = types.SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=50),
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(used=3 << 20),
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert system_metrics.gpu_values() == {"gpu0_share": 0.5, "gpu0_memory_mb": 3.0}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert system_metrics.gpu_values() == {}
