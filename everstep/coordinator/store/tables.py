"""The tables of the store, as the newest revision has them. `migrations` brings older databases to this.

A change here needs a revision there; a test compares the two."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, MetaData, String, Table, Text

from everstep.coordinator.roster.facts import Worker

TABLES = MetaData()
OWNER = Table("owner", TABLES, Column("epoch", BigInteger, primary_key=True, autoincrement=False))  # one row
JOBS = Table(
    "jobs",
    TABLES,
    Column("job", String, primary_key=True),
    Column("name", Text, nullable=False),
    Column("policy", Text, nullable=False),
    Column("is_stopped", Boolean, nullable=False),
    Column("is_finished", Boolean, nullable=False),
    Column("reason", Text, nullable=False),
    Column("attempt", Text, nullable=False),
    Column("num_restarts", BigInteger, nullable=False),
)
_TYPES: dict[str, Any] = {"int": BigInteger, "str": Text, "bool": Boolean}
WORKERS = Table(
    "workers",
    TABLES,
    Column("job", String, primary_key=True),
    *(
        Column(each.name, _TYPES[str(each.type)], primary_key=each.name == "worker", nullable=False)
        for each in fields(Worker)
    ),
)
GENERATIONS = Table(
    "generations",
    TABLES,
    Column("job", String, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("members", Text, nullable=False),
    Column("store_port", BigInteger, nullable=False),
    Column("continues", BigInteger, nullable=False),
    Column("max_workers", BigInteger),
    Column("left_out", Text, nullable=False),
    Column("is_closed", Boolean, nullable=False),
    Column("is_broken", Boolean, nullable=False),
    Column("must_probe", Boolean, nullable=False),
    Column("is_lost", Boolean, nullable=False),
    Column("reason", Text, nullable=False),
)
DATASETS = Table(
    "datasets",
    TABLES,
    Column("job", String, primary_key=True),
    Column("dataset", String, primary_key=True),
    Column("spec", Text, nullable=False),
    Column("next", BigInteger, nullable=False),
    Column("next_lease", BigInteger, nullable=False),
    Column("settled", BigInteger, nullable=False),
    Column("restored", Text, nullable=False),
)
# One row per process, with all that it holds: the usual call of a worker then writes one row.
HOLDERS = Table(
    "holders",
    TABLES,
    Column("job", String, primary_key=True),
    Column("dataset", String, primary_key=True),
    Column("worker", String, primary_key=True),
    Column("incarnation", String, primary_key=True),
    Column("request", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("refused", Text, nullable=False),
    Column("leases", Text, nullable=False),
)
WAITING_LEASES = Table(
    "waiting_leases",
    TABLES,
    Column("job", String, primary_key=True),
    Column("dataset", String, primary_key=True),
    Column("lease", BigInteger, primary_key=True),
    Column("start", BigInteger, nullable=False),
    Column("stop", BigInteger, nullable=False),
    Column("is_takeover", Boolean, nullable=False),
)
BAD_SHARDS = Table(
    "bad_shards",
    TABLES,
    Column("job", String, primary_key=True),
    Column("dataset", String, primary_key=True),
    Column("start", BigInteger, primary_key=True),
    Column("failures", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("skipped", Text, nullable=False),
)
METRICS = Table(
    "metrics",
    TABLES,
    Column("job", String, primary_key=True),
    Column("kind", String, primary_key=True),
    Column("batches", BigInteger, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("time", Float, nullable=False),
    Column("epochs", BigInteger),
    Column("records", BigInteger),
    Column("metrics", Text, nullable=False),
    Column("facts", Text, nullable=False),
    Index("metrics_by_number", "job", "number"),
)
