"""A database of any earlier revision becomes one of the newest; one of a later version is left alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text

from everstep.coordinator.store import migrate
from everstep.coordinator.store.migrations.versions import r0001_membership
from everstep.coordinator.store.store import Store
from everstep.coordinator.store.tables import TABLES
from everstep.errors import UsageError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


def changed(path, act):
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        found = act(connection)
    engine.dispose()
    return found


def make_first_revision(connection):
    """As it was before revisions were numbered, with a job in it."""
    with Operations.context(MigrationContext.configure(connection)):
        r0001_membership.upgrade()
    connection.execute(
        text("insert into jobs values ('old', 'its name', '{\"lease_s\": 9.0}', false, false, '', :attempt, 2)"),
        {"attempt": '{"number": -1, "seats": []}'},
    )


def differences(path):
    def compare(connection):
        options = {"version_table": "everstep_version", "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        return compare_metadata(context, TABLES), context.get_current_revision()

    return changed(path, compare)


def test_a_migrated_database_is_the_same_as_a_new_one(path, tmp_path):
    changed(path, make_first_revision)
    Store(str(path)).close()
    Store(str(tmp_path / "new.db")).close()

    assert differences(path) == differences(tmp_path / "new.db") == ([], migrate.NEWEST)


def test_what_was_in_it_is_still_there(path):
    changed(path, make_first_revision)
    store = Store(str(path))
    roster = store.load("old")
    store.close()

    assert (roster.name, roster.policy.lease_s, roster.num_restarts) == ("its name", 9.0, 2)
    assert roster.policy.shard_failures == 3  # what is newer has its default


def test_a_newer_database_is_refused_and_not_touched(path):
    Store(str(path)).close()
    changed(path, lambda connection: connection.execute(text("update everstep_version set version_num = '9999'")))
    before = path.read_bytes()
    with pytest.raises(UsageError, match="revision 9999; the newest that this version of everstep knows is 0004"):
        Store(str(path))
    assert path.read_bytes() == before


def test_a_migration_that_breaks_off_leaves_the_database_as_it_was(path):
    changed(path, make_first_revision)
    changed(path, lambda connection: connection.execute(text("create table bad_shards (mine text)")))
    with pytest.raises(UsageError, match="bad_shards already exists"):
        Store(str(path))

    assert "datasets" not in changed(path, lambda connection: inspect(connection).get_table_names())


def test_an_up_to_date_store_is_opened_without_alembic(path):
    code = f"""
import sys
from everstep.coordinator.store.store import Store
Store({str(path)!r}).close()
Store({str(path)!r}).close()
print("alembic" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
