"""A record that cannot be read says why, and what to do."""

from __future__ import annotations

from contextlib import closing

import pytest

from everstep.coordinator.edge.record_server import RecordAnswers
from everstep.coordinator.finished_record import open_record
from everstep.coordinator.roster.facts import Roster
from everstep.coordinator.store.store import Store
from everstep.errors import UsageError
from everstep.record.about import LOGS, STORE
from everstep.record.store import MetricStore
from everstep.record.writing import Incoming
from everstep.storage.database import StoreError, open_engine
from everstep.wire import LogsRequest, MetricReport, Policy
from everstep.wire.metrics import MOST_REPORTS, MOST_SERIES

ASKS = {
    "summary": lambda answers: answers.jobs(),
    "band": lambda answers: answers.band(),
    "generation": lambda answers: answers.generation(1),
}


@pytest.fixture
def folder(tmp_path):
    store = Store(str(tmp_path / STORE))
    store.save(None, Roster(job="job", name="", policy=Policy()))
    store.close()
    return tmp_path


@pytest.fixture
def answers(folder):
    with open_record(folder, "job") as record:
        yield RecordAnswers(record)


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_a_record_of_another_revision_names_both(folder, answers, ask):
    engine = open_engine(str(folder / STORE))
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE everstep_version SET version_num = '0003'")
    engine.dispose()
    with pytest.raises(UsageError, match="has revision 0003; this version of everstep knows") as refused:
        ask(answers)
    assert refused.value.code == "record-revision-unknown" and refused.value.hint


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_a_damaged_store_is_named(folder, answers, ask):
    (folder / STORE).write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match=f"{STORE} cannot be read") as failed:
        ask(answers)
    assert failed.value.code == "record-not-read" and failed.value.hint


def test_damaged_lines_are_named(folder, answers):
    (folder / LOGS).write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match="file is not a database"):
        answers.logs(LogsRequest())


def test_a_record_shows_checkpoints_and_series_behind_many_others(folder, answers):
    with closing(MetricStore(str(folder / STORE), epoch=1)) as store:
        system = {f"system/{number}": 1.0 for number in range(MOST_SERIES)}
        saved = MetricReport(kind="checkpoint", step=1, time=1.0, details={"uuid": "first"})
        others = [MetricReport(kind="note", step=2, time=1.0, details={"n": n}) for n in range(MOST_REPORTS)]
        for reports in ([MetricReport(step=1, time=1.0, values=system)], [saved], others):
            store.keep([Incoming("job", -1, reports)])
        store.keep([Incoming("job", -1, [MetricReport(step=1, time=1.0, values={"loss": 1.0})])])
    assert [each.uuid for each in answers.about().checkpoints] == ["first"]
    assert [each.name for each in answers.compare("job").jobs[0].values] == ["loss"]


def test_a_record_has_a_brief_view(answers):
    assert answers.view(is_brief=True).workers == []
