"""A record that cannot be read says why, and what to do."""

from __future__ import annotations

import pytest

from everstep.coordinator.edge.record_server import RecordAnswers
from everstep.coordinator.finished_record import open_record
from everstep.coordinator.roster.facts import Roster
from everstep.coordinator.store.store import Store
from everstep.errors import UsageError
from everstep.record.about import LOGS, STORE
from everstep.storage.database import StoreError, open_engine
from everstep.wire import LogsRequest, Policy

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
