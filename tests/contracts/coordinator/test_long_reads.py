"""What people look at is read beside the work: however long a read takes, workers are answered and what they do is
kept."""

from __future__ import annotations

import threading

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.waiting import wait_until

HELD = """
import time
from pathlib import Path
from everstep.coordinator.store import store_reader

def held(query):
    def read(*given):
        found = query(*given)
        Path({folder!r}, "reading").touch()
        while not Path({folder!r}, "go on").exists():
            time.sleep(0.01)
        return found
    return read

store_reader.{query} = held(store_reader.{query})
"""


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
@pytest.mark.parametrize(
    ("query", "ask"),
    [("load_marks", lambda job: job.band().marks), ("load_summaries", lambda job: job.jobs(search=job.job).jobs)],
    ids=["band", "list"],
)
def test_workers_are_answered_while_someone_reads_for_long(tmp_path, server_class, play, request, store, query, ask):
    url = str(tmp_path / "db") if store == "sqlite" else request.getfixturevalue("postgres_url")
    server = server_class(tmp_path, url, before=HELD.format(folder=str(tmp_path), query=query))
    one = play(server, start_workers=2)
    workers = one.training(2)
    found = []
    with Coordinator(server.url, server.token, one.coordinator.job) as reader:
        reading = threading.Thread(target=lambda: found.extend(ask(reader)))
        reading.start()
        wait_until((tmp_path / "reading").exists, 60.0, "the read to begin")
        for worker in workers:  # a heartbeat
            worker.watch()
        one.coordinator.register_dataset("numbers", wire.DatasetSpec(size=10, batch_size=5))
        request = wire.LeaseRequest(
            incarnation=workers[0].incarnation, dataset="numbers", request=1, wants=1, wait_s=0.0
        )
        assert one.coordinator.report_and_lease(workers[0].name, request).leases
        workers[1].exit(-9, step=4)  # changes the roster
        assert one.statuses()[workers[1].name] == "dead"
        assert not found
        (tmp_path / "go on").touch()
        reading.join(60.0)
    assert found
    server.stop()
