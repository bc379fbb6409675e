"""The tables of the store, as the newest revision has them. `migrations` brings older databases to this.

A change here needs a revision there; a test compares the two."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Float, MetaData, String, Table, Text

from everstep.coordinator.roster.facts import Worker

TABLES = MetaData()

_name = partial(Column, type_=String, primary_key=True)
_key = partial(Column, type_=BigInteger, primary_key=True, autoincrement=False)
_text = partial(Column, type_=Text, nullable=False)
_json = partial(Column, type_=Text, nullable=False, info={"is_json": True})
_number = partial(Column, type_=BigInteger, nullable=False)
_optional = partial(Column, type_=BigInteger)
_flag = partial(Column, type_=Boolean, nullable=False)
_time = partial(Column, type_=Float, nullable=False)  # of day

OWNER = Table("owner", TABLES, _key("epoch"))  # one row
JOBS = Table(
    "jobs",
    TABLES,
    *(_name("job"), _text("name"), _json("policy"), _flag("is_stopped"), _flag("is_finished"), _text("reason")),
    *(_json("attempt"), _number("num_restarts"), _json("config", server_default="{}")),
)
_KINDS: dict[str, Any] = {"int": _number, "str": _text, "bool": _flag}
WORKERS = Table(
    "workers",
    TABLES,
    _name("job"),
    *(_KINDS[str(each.type)](each.name, primary_key=each.name == "worker") for each in fields(Worker)),
)
GENERATIONS = Table(
    "generations",
    TABLES,
    *(_name("job"), _key("number"), _json("members"), _number("store_port"), _number("continues")),
    *(_optional("max_workers"), _json("left_out"), _flag("is_closed"), _flag("is_broken"), _flag("must_probe")),
    *(_flag("is_lost"), _text("reason")),
)
# What happened to the workers of a job, in the order of happening: see `roster.marks`.
MARKS = Table(
    "marks",
    TABLES,
    *(_name("job"), _key("number"), _time("time"), _number("step"), _text("kind"), _number("generation")),
    *(_text("worker"), _number("rank"), _text("reason"), _number("size"), _json("joined"), _json("parted")),
)
PAGE_SESSIONS = Table("page_sessions", TABLES, *(_name("digest"), _text("token"), _text("role"), _time("expires_at")))
DATASETS = Table(
    "datasets",
    TABLES,
    *(_name("job"), _name("dataset"), _json("spec"), _number("next"), _number("next_lease"), _number("settled")),
    _text("restored"),
)
# One row per process, with all that it holds: the usual call of a worker then writes one row.
HOLDERS = Table(
    "holders",
    TABLES,
    *(_name("job"), _name("dataset"), _name("worker"), _name("incarnation"), _number("request")),
    *(_number("generation"), _json("refused"), _json("leases")),
)
WAITING_LEASES = Table(
    "waiting_leases",
    TABLES,
    *(_name("job"), _name("dataset"), _key("lease"), _number("start"), _number("stop"), _flag("is_takeover")),
)
BAD_SHARDS = Table(
    "bad_shards",
    TABLES,
    *(_name("job"), _name("dataset"), _key("start"), _number("failures"), _text("reason"), _json("skipped")),
)
# A slot that was given to a trial; rows stay, so that no number is used again.
ASSIGNMENTS = Table(
    "assignments",
    TABLES,
    *(_key("number"), _text("pool"), _text("agent"), _number("slot"), _number("experiment"), _number("trial")),
    *(_text("state"), _text("reason"), _time("began_at"), _time("ended_at")),
)
POOL_AGENTS = Table(
    "pool_agents",
    TABLES,
    *(_name("pool"), _name("agent"), _text("incarnation"), _number("num_slots"), _text("kind"), _time("seen_at")),
)
# Made where it is missing: an older version that finds it need not know it.
ENDED_JOBS = Table("ended_jobs", MetaData(), _name("job"), Column("seen_at", Float, nullable=False))
