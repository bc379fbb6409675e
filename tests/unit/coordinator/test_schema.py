"""A database of any earlier revision becomes one of the newest; one of a later version is left alone."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text

from everstep.coordinator.roster.facts import Roster
from everstep.coordinator.store import migrate
from everstep.coordinator.store.store import Store
from everstep.coordinator.store.tables import ENDED_JOBS, TABLES
from everstep.errors import UsageError
from everstep.wire import Policy


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


def changed(path, act):
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        found = act(connection)
    engine.dispose()
    return found


SECOND = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "0014", "0013"


def upgrade():
    op.add_column("jobs", sa.Column("color", sa.Text, nullable=False, server_default="red"))
    {last}
"""


@pytest.fixture
def add_revision(tmp_path, monkeypatch):
    """As a later version of everstep has it."""

    def add(last="pass"):
        scripts = tmp_path / "migrations"
        shutil.copytree(migrate._SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
        (scripts / "versions" / "r0014_color.py").write_text(SECOND.format(last=last))
        monkeypatch.setattr(migrate, "_SCRIPTS", scripts)
        monkeypatch.setattr(migrate, "NEWEST", "0014")

    return add


def colors(path):
    return changed(path, lambda connection: [each["name"] for each in inspect(connection).get_columns("jobs")][-1])


def differences(path):
    def compare(connection):
        options = {"version_table": "everstep_version", "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        return compare_metadata(context, [TABLES, ENDED_JOBS.metadata]), context.get_current_revision()

    return changed(path, compare)


def test_a_new_database_has_the_tables_of_the_newest_revision(path):
    Store(str(path)).close()
    assert differences(path) == ([], migrate.NEWEST)


def test_an_older_database_is_migrated_with_all_that_is_in_it(path, add_revision):
    store = Store(str(path))
    store.save(None, Roster(job="old", name="its name", policy=Policy(lease_s=9.0)))
    store.close()
    add_revision()
    store = Store(str(path))
    roster = store.load("old")
    store.close()

    assert (roster.name, roster.policy.lease_s) == ("its name", 9.0)
    assert (differences(path)[1], colors(path)) == ("0014", "color")


def test_a_newer_database_is_refused_and_not_touched(path):
    Store(str(path)).close()
    changed(path, lambda connection: connection.execute(text("update everstep_version set version_num = '9999'")))
    before = path.read_bytes()
    with pytest.raises(UsageError, match="revision 9999") as refused:
        Store(str(path))
    assert refused.value.code == "store-revision-unknown"
    assert path.read_bytes() == before


def test_a_migration_that_breaks_off_leaves_the_database_as_it_was(path, add_revision):
    Store(str(path)).close()
    add_revision(last='op.create_table("bad_shards", sa.Column("mine", sa.Text))')
    with pytest.raises(UsageError, match="bad_shards already exists"):
        Store(str(path))

    assert (differences(path)[1], colors(path)) == ("0013", "config")


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
