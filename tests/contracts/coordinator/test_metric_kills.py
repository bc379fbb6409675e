"""kill -9 the coordinator again and again while scripts report: what it has acknowledged is there, once."""

from __future__ import annotations

import threading

import pytest

from everstep.errors import CoordinatorUnreachable
from everstep.wire import MetricReport
from lab.command import until
from lab.reporting_script import Script


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_a_coordinator_killed_under_load_has_what_it_acknowledged_once(
    tmp_path, server_class, play, puppet_class, store, request
):
    server = server_class(
        tmp_path, str(tmp_path / "db") if store == "sqlite" else request.getfixturevalue("postgres_url")
    )
    one = play(server)
    scripts = [Script(one, puppet_class(one.coordinator)) for _ in range(3)]
    acknowledged = [0] * len(scripts)
    is_over = threading.Event()

    def load(number):
        """Batch after batch; one without an answer is reported again."""
        while not is_over.is_set():
            start, name = acknowledged[number], f"loss{number}"
            reports = [MetricReport(step=step, time=1.0, values={name: step / 2}) for step in range(start, start + 50)]
            try:
                scripts[number].report(*reports)
            except CoordinatorUnreachable:
                is_over.wait(0.01)
            else:
                acknowledged[number] += 50

    threads = [threading.Thread(target=load, args=[number]) for number in range(len(scripts))]
    for thread in threads:
        thread.start()
    for _ in range(4):
        reached = min(acknowledged) + 100
        until(lambda reached=reached: min(acknowledged) >= reached, lambda: f"only {acknowledged} were kept")
        server.kill()
        server.start()
    is_over.set()
    for thread in threads:
        thread.join(60)

    for number, told in enumerate(acknowledged):
        view, points = scripts[number].series()[f"loss{number}"], scripts[number].points(f"loss{number}")
        assert view.count == len(points) and set(range(told)) <= set(points) <= set(range(told + 50))
        assert all(value == step / 2 for step, value in points.items())
        assert (view.least, view.most, view.last) == (0.0, (len(points) - 1) / 2, (len(points) - 1) / 2)
        window = one.coordinator.series_window(view.series, columns=7)
        assert window.num_points == sum(window.counts) == len(points)
    server.stop()
