"""Jobs that are over leave the memory, and after some days the store, with their metrics and lines; others stay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.coordinator.service import Service
from everstep.coordinator.store.store import Store
from everstep.errors import CoordinatorUnreachable, Refused
from everstep.storage.database import StoreError, open_engine
from lab.experiments import spec
from lab.log_writer import Writer

# Each look comes at once, and a day is a second: so "2 days" are within reach.
SOON = """
from everstep.coordinator import retention
retention.SWEEP_S, retention._DAY_S, retention.DAYS = 0.1, 1.0, 2.0
from everstep.coordinator.edge import server
server.serve.__kwdefaults__["keep_days"] = 2.0
"""


@pytest.fixture
def soon(server_class: Any, tmp_path_factory: pytest.TempPathFactory, store_url: str) -> Iterator[Any]:
    server = server_class(tmp_path_factory.mktemp("coordinator"), store_url, before=SOON)
    yield server
    server.stop()
    assert "Traceback" not in server.log_file.read_text(), server.log_file.read_text()


def until(what: Any, *, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_gone(coordinator: Any) -> bool:
    try:
        coordinator.view()
        return False
    except Refused as refused:
        return refused.code == "job-unknown"


def rows_of(url: str, job: str) -> dict[str, int]:
    """By table, in all files of the store."""
    path = None if "://" in url else url
    found: dict[str, int] = {}
    for each in [url] if path is None else [path, f"{path}.record", path.replace(".db", "-logs.db")]:
        engine = open_engine(each)
        with engine.connect() as connection:
            for name in inspect(connection).get_table_names():
                columns = {column["name"] for column in inspect(connection).get_columns(name)}
                if "job" in columns:
                    told = connection.exec_driver_sql(f"select count(*) from {name} where job = '{job}'")
                    found[name] = int(told.scalar_one())
        engine.dispose()
    return found


def fill(play: Any, server: Any) -> Writer:
    """A job with all kinds of rows."""
    story = play(server)
    return train(story.coordinator, *story.training(1))


def train(job: Coordinator, puppet: Any) -> Writer:
    report = wire.MetricReport(step=1, time=1.0, generation=1, values={"loss": 1.0}, details={"note": "x"})
    job.report_metrics(puppet.name, wire.MetricReports(reports=[report]))
    writer = Writer(job)
    writer.say("one", "two")
    return writer


def test_a_job_that_ended_long_ago_is_removed_with_all_that_it_had_and_an_open_one_stays(
    play: Any, soon: Any, store_url: str
) -> None:
    over, going = fill(play, soon).coordinator, fill(play, soon).coordinator
    job, other = over.view().job, going.view().job
    before = {name for name, number in rows_of(store_url, job).items() if number}
    assert {"jobs", "workers", "generations", "record_series", "record_reports", "log_blocks", "log_writers"} <= before
    over.stop(wire.Stop(reason="enough"))

    until(lambda: is_gone(over))
    assert set(rows_of(store_url, job).values()) == {0}
    assert rows_of(store_url, other)["record_series"] == 1
    assert [each.text for each in going.logs(wire.LogsRequest()).lines] == ["one", "two"]
    log = soon.log_file.read_text()
    assert f"removed 1 jobs that ended more than 2 days ago, with 1 series and 2 lines: {job}" in log
    assert over.create_job(wire.JobSpec()).generation == 0  # the name is free again


@contextmanager
def ending(server: Any) -> Iterator[None]:
    try:
        yield
    finally:
        server.end()


# The first one dies between the metrics of a job and its lines.
DIES_ONCE = """
import os, signal
from pathlib import Path
from everstep.coordinator.job_logs import JobLogs

async def die(self, job):
    Path({mark!r}).touch()
    os.kill(os.getpid(), signal.SIGKILL)

if not Path({mark!r}).exists():
    JobLogs.drop = die
"""


def test_a_deleted_experiment_takes_the_jobs_of_its_trials_with_it_even_if_the_coordinator_dies(
    server_class: Any, puppet_class: Any, tmp_path: Path, store_url: str
) -> None:
    mark = tmp_path / "died"
    server = server_class(tmp_path, store_url, before=DIES_ONCE.format(mark=str(mark)))
    with Coordinator(server.url, server.token, "none") as people, ending(server):
        numbers = [people.create_experiment(spec("random", max_trials=1)).experiment for _ in range(2)]
        gone, stays = (Coordinator(server.url, server.token, wire.trial_job(number, 1)) for number in numbers)
        with gone, stays:
            for job in (gone, stays):
                job.create_job(wire.JobSpec())
                puppet = puppet_class(job)
                for act in (puppet.announce, puppet.arrive, puppet.settle):
                    act()
                train(job, puppet)
                job.report_result(wire.TrialResult(length=64, metric=0.1))
            before = {name for name, number in rows_of(store_url, gone.job).items() if number}
            assert {"jobs", "workers", "record_series", "record_reports", "log_blocks"} <= before
            with suppress(CoordinatorUnreachable):  # it may die before it answers
                people.act(numbers[0], wire.ExperimentAction(action="delete"))
            until(mark.exists)
            server.process.wait(60)
            assert rows_of(store_url, gone.job)["log_blocks"]
            server.start()
            until(lambda: is_gone(gone))
            assert set(rows_of(store_url, gone.job).values()) == {0}
            assert [each.text for each in stays.logs(wire.LogsRequest()).lines] == ["one", "two"]


def test_a_job_that_is_over_leaves_the_memory_and_is_read_again_when_somebody_asks(store_url: str) -> None:
    async def story() -> None:
        service = Service(Store(store_url))
        try:
            for name in ("open", "over"):
                await service.create(name, wire.JobSpec())
            await (await service.job("over")).stop("enough")
            for _ in range(2):
                await service.retention.sweep(time.time())
            assert service.job_at_hand("over") is None
            assert service.job_at_hand("open") is not None
            assert (await service.job("over")).view().reason == "enough"
            with pytest.raises(Refused):
                await service.job("never")
        finally:
            await service.close()

    asyncio.run(story())


def test_a_job_that_is_read_while_it_is_removed_does_not_come_back(store_url: str, monkeypatch: Any) -> None:
    async def story() -> None:
        service = Service(Store(store_url), keep_days=1.0)
        drop = service.logs.drop

        async def read_and_drop(job: str) -> int:
            await service.job(job)
            return await drop(job)

        monkeypatch.setattr(service.logs, "drop", read_and_drop)
        try:
            await (await service.create("read", wire.JobSpec())).stop("enough")
            await service.retention.sweep(time.time())
            assert "read" in await service.retention.sweep(time.time() + 2 * 86_400)
            assert service.job_at_hand("read") is None
            found = await service.listing.find(0, 100, "job", is_descending=False, search="", states=())
            assert "read" not in [each.job for each in found.jobs]
        finally:
            await service.close()

    asyncio.run(story())


def test_a_change_to_a_job_that_has_just_left_the_memory_is_asked_for_again(store_url: str) -> None:
    async def story() -> None:
        service = Service(Store(store_url))
        try:
            job = await service.create("left", wire.JobSpec())
            await job.stop("enough")
            await service._drop("left")
            report = wire.AgentReport(
                incarnation="i", node="a", workers=[], num_workers=1, address="h", probe_port=1, free_port=2
            )
            with pytest.raises(StoreError, match="ask again"):
                await asyncio.wait_for(job.report("a", report), 30.0)
        finally:
            await service.close()

    asyncio.run(story())
