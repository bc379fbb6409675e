"""Bring a database to the newest revision before anything else is done with it.

An empty one gets all tables at once. An older one is migrated, in one transaction, by the holder of the store's lock.
A newer one is refused: this version cannot understand what it holds. alembic is imported only to migrate: most starts
of a coordinator are on a new or an up-to-date store, and should be quick."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, String, Table, insert, inspect, select

from everstep.coordinator.store.tables import TABLES
from everstep.errors import UsageError

NEWEST = "0012"

_VERSION = Table("everstep_version", MetaData(), Column("version_num", String(32), primary_key=True))
_SCRIPTS = Path(__file__).parent / "migrations"


def bring_up_to_date(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # else each statement would be a transaction of its own
    if not inspect(connection).has_table(_VERSION.name):
        TABLES.create_all(connection)
        _VERSION.create(connection)
        connection.execute(insert(_VERSION).values(version_num=NEWEST))
    elif (found := revision_of(connection)) != NEWEST:
        _migrate(connection, found)


def revision_of(connection: Connection) -> str:
    return str(connection.scalar(select(_VERSION.c.version_num)))


def _migrate(connection: Connection, found: str) -> None:
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(_SCRIPTS))
    known = [each.revision for each in scripts.walk_revisions()]
    if found not in known:
        raise UsageError(
            f"the store has revision {found}; the newest that this version of everstep knows is {NEWEST}",
            hint="give another --store, or use the version of everstep that wrote this one",
            code="store-revision-unknown",
        )
    context = MigrationContext.configure(connection, opts={"version_table": _VERSION.name})
    for script in reversed(list(scripts.iterate_revisions(NEWEST, found))):
        with Operations.context(context):
            script.module.upgrade()
        context.stamp(scripts, script.revision)
