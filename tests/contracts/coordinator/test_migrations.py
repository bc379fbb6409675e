"""A store of the first revision becomes one of the newest, on each kind of store."""

from __future__ import annotations

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text

from everstep.coordinator.roster.facts import Roster
from everstep.coordinator.store import migrate
from everstep.coordinator.store.store import Store
from everstep.coordinator.store.tables import ENDED_JOBS, TABLES
from everstep.storage.database import open_engine
from everstep.wire import Policy

# What revisions after the first one have added.
ADDED = (
    "experiments",
    "trials",
    "search_events",
    "checkpoints",
    "assignments",
    "pool_agents",
    "marks",
    "page_sessions",
    "experiment_secrets",
    "trial_secret",
    "checkpoint_notes",
    "models",
    "model_versions",
    "templates",
)


def as_the_first_revision_left_it(url: str) -> None:
    store = Store(url)
    store.save(None, Roster(job="old", name="its name", policy=Policy(lease_s=9.0)))
    store.close()
    engine = open_engine(url)
    with engine.begin() as connection:
        for table in ADDED:
            connection.execute(text(f"drop table {table}"))
        connection.execute(text("alter table jobs drop column config"))
        connection.execute(text("update everstep_version set version_num = '0006'"))
    engine.dispose()


def test_all_migrations_lead_to_the_tables_of_a_new_store_and_keep_what_is_there(store_url: str) -> None:
    as_the_first_revision_left_it(store_url)
    store = Store(store_url)
    roster = store.load("old")
    store.close()
    assert roster is not None and (roster.name, roster.policy.lease_s) == ("its name", 9.0)

    engine = open_engine(store_url)
    with engine.connect() as connection:
        options = {"version_table": "everstep_version", "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, [TABLES, ENDED_JOBS.metadata]) == []
        assert context.get_current_revision() == migrate.NEWEST
    engine.dispose()
