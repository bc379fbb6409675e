"""What people look at, metrics and logs are read and kept beside the work: however long that takes, workers are
answered, and what they do is kept."""

from __future__ import annotations

import threading

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.waiting import wait_until
from lab.log_writer import Writer

HELD = """
import time
from pathlib import Path
from {module} import {owner}

def held(call):
    def wait(*given, **named):
        found = call(*given, **named)
        Path({folder!r}, "at work").touch()
        while not Path({folder!r}, "go on").exists():
            time.sleep(0.01)
        return found
    return wait

{owner}.{call} = held({owner}.{call})
"""

READER = ("everstep.coordinator.store", "store_reader")
METRICS = ("everstep.record.store", "MetricStore")
LOGS = ("everstep.coordinator.store.log_store", "LogStore")
LOG_READER = ("everstep.coordinator.store.log_reader", "LogReader")
REPORT = wire.MetricReports(reports=[wire.MetricReport(step=1, time=1.0, values={"loss": 0.5})])
ASKED = {
    "band": (*READER, "load_marks", lambda job: job.band().marks),
    "list": (*READER, "load_summaries", lambda job: job.jobs(search=job.job).jobs),
    "points kept": (*METRICS, "keep", lambda job: [job.report_metrics("w0", REPORT)]),
    "series read": (*METRICS, "series", lambda job: [job.series()]),
    "lines kept": (*LOGS, "keep", lambda job: [Writer(job).say("one")]),
    "lines read": (*LOG_READER, "read", lambda job: [job.logs(wire.LogsRequest())]),
}


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
@pytest.mark.parametrize(("module", "owner", "call", "ask"), ASKED.values(), ids=ASKED)
def test_workers_are_answered_meanwhile(tmp_path, server_class, play, request, store, module, owner, call, ask):
    url = str(tmp_path / "db") if store == "sqlite" else request.getfixturevalue("postgres_url")
    held = HELD.format(module=module, owner=owner, call=call, folder=str(tmp_path))
    server = server_class(tmp_path, url, before=held)
    one = play(server, start_workers=2)
    workers = one.training(2)
    answers = []
    with Coordinator(server.url, server.token, one.coordinator.job) as other:
        asking = threading.Thread(target=lambda: answers.extend(ask(other)))
        asking.start()
        wait_until((tmp_path / "at work").exists, 60.0, "the call to begin")
        for worker in workers:  # a heartbeat
            worker.watch()
        one.coordinator.register_dataset("numbers", wire.DatasetSpec(size=10, batch_size=5))
        request = wire.LeaseRequest(
            incarnation=workers[0].incarnation, dataset="numbers", request=1, wants=1, wait_s=0.0
        )
        assert one.coordinator.report_and_lease(workers[0].name, request).leases
        workers[1].exit(-9, step=4)  # changes the roster
        assert one.statuses()[workers[1].name] == "dead"
        assert not answers
        (tmp_path / "go on").touch()
        asking.join(60.0)
    assert answers
    server.stop()
