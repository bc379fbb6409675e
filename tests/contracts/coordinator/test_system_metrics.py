"""An agent's samples of its node and its workers become series of the job."""

from __future__ import annotations

import os
import sys
import types

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.errors import Refused
from everstep.launcher.system_metrics import GpuReader, SystemSampler
from lab.command import until


def test_the_node_and_each_worker_have_series_by_time(play):
    one, said = play(system_metrics_s=0.05), []
    one.coordinator.report("n0", wire.AgentReport(incarnation="i", node="n0", workers=[], wait_s=0.0))
    sampler = SystemSampler(
        lambda: Coordinator(one.coordinator.url, one.server.token, one.coordinator.job),
        "n0",
        lambda: {"w0": os.getpid(), "w1": 2**22 + 1},
        say=said.append,
        first_s=0.05,
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
    page_mb = os.sysconf("SC_PAGE_SIZE") / 1e6
    pages = found["system/w0/memory_mb"].last / page_mb
    assert abs(pages - round(pages)) < 1e-6  # MB are 10^6 bytes
    assert said == []


def test_a_node_that_never_came_is_refused(play):
    reports = wire.MetricReports(reports=[wire.MetricReport(step=1, time=1.0, values={"cpu_cores": 1.0})])
    with pytest.raises(Refused, match="there is no node n7"):
        play().coordinator.report_node_metrics("n7", reports)


def sampler_of(one, say=print):
    return SystemSampler(
        lambda: Coordinator(one.coordinator.url, one.server.token, one.coordinator.job),
        "n0",
        dict,
        say=say,
        first_s=0.05,
    )


def sample(name, *steps):
    return wire.MetricReports(
        reports=[wire.MetricReport(kind=name, step=step, time=1.0, values={"x": 1.0}) for step in steps]
    )


def with_node(one):
    one.coordinator.report("n0", wire.AgentReport(incarnation="i", node="n0", workers=[], wait_s=0.0))
    return one.coordinator


def test_a_job_that_wants_no_system_metrics_has_none_and_its_agents_stop_sampling(play):
    one = play(system_metrics_s=0)
    with_node(one)
    sampler = sampler_of(one)
    sampler.open()
    sampler._thread.join(60)

    assert not sampler._thread.is_alive()
    assert one.coordinator.series().series == []


LIMITS = """
import everstep.wire.limits as limits
limits.MAX_SERIES, limits.MAX_SYSTEM_SERIES, limits.SYSTEM_POINTS = 1, 3, 4
"""


@pytest.fixture
def small(tmp_path, server_class):
    server = server_class(tmp_path, str(tmp_path / "db"), before=LIMITS)
    yield server
    server.stop()


def test_samples_do_not_count_as_the_jobs_own_and_are_bounded_by_themselves(small, play, puppet_class):
    one = play(small)
    coordinator, script = with_node(one), puppet_class(one.coordinator)
    coordinator.report_node_metrics("n0", sample("system/a", 1))
    coordinator.report_node_metrics("n0", sample("system/b", 1))
    coordinator.report_metrics(script.name, sample("loss", 1))  # one series of its own

    with pytest.raises(Refused, match="2 series of metrics; the limit is 1"):
        coordinator.report_metrics(script.name, sample("other", 1))
    coordinator.report_node_metrics("n0", sample("system/c", 1))
    said = []
    sampler = sampler_of(one, said.append)
    sampler.open()
    sampler._thread.join(60)
    (sentence,) = said
    assert "stopped sampling system metrics on n0" in sentence
    assert "series of system metrics; the limit is 3" in sentence
    assert [each.name for each in coordinator.series(is_own=True).series] == ["loss/x"]
    assert coordinator.series(is_own=True).num_series == 1
    assert coordinator.series().num_series == 4


def test_the_more_samples_a_job_has_the_rarer_they_get(small, play):
    one = play(small, system_metrics_s=2.0)
    coordinator = with_node(one)

    intervals = [coordinator.report_node_metrics("n0", sample("system/n0", step)).next_s for step in range(1, 13)]
    assert intervals == [2.0] * 3 + [4.0] * 4 + [8.0] * 4 + [16.0]


class NvmlError(Exception):
    pass


def library(**changed):
    calls = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUtilizationRates": lambda handle: types.SimpleNamespace(gpu=50),
        "nvmlDeviceGetMemoryInfo": lambda handle: types.SimpleNamespace(used=3_000_000),
        "NVMLError": NvmlError,
    }
    return types.SimpleNamespace(**calls | changed)


def test_gpus_are_sampled_where_the_library_is_installed(monkeypatch):
    said = []
    monkeypatch.setitem(sys.modules, "pynvml", library())
    assert GpuReader(said.append).values() == {"gpu0_share": 0.5, "gpu0_memory_mb": 3.0}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuReader(said.append).values() == {}
    assert said == []


def test_what_the_library_cannot_do_is_said_once_and_other_errors_are_not_hidden(monkeypatch):
    def fail():
        raise NvmlError("Driver Not Loaded")

    said = []
    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlInit=fail))
    reader = GpuReader(said.append)
    assert [reader.values(), reader.values()] == [{}, {}]
    assert said == ["cannot sample GPUs: Driver Not Loaded"]
    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlDeviceGetCount=lambda: "one"))
    with pytest.raises(TypeError):
        GpuReader(said.append).values()
