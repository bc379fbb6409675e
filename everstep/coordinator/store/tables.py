"""The tables of the store, as the newest revision has them. `migrations` brings older databases to this.

A change here needs a revision there; a test compares the two."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, MetaData, String, Table, Text

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
_maybe = partial(Column, type_=Float)  # a time of day, or a metric

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
# `summary`: what a list shows of one that is over. `needs_sweep`: checkpoints are still to be deleted.
EXPERIMENTS = Table(
    "experiments",
    TABLES,
    *(_key("number"), Column("request", String, nullable=False), _text("name"), _text("description"), _json("labels")),
    *(_text("notes"), _text("state"), _text("reason"), _json("spec"), _json("kept"), _json("warm_start")),
    *(_json("summary"), _flag("is_archived"), _flag("needs_sweep"), _number("program_after"), _text("program_state")),
    *(_time("created_at"), _maybe("started_at"), _maybe("ended_at"), _text("owner", server_default="")),
    *(_json("scheduling", server_default="{}"), _text("created_by", server_default="")),
    *(_time("ran_s", server_default="0"), _maybe("runs_since")),
    Index("experiments_by_request", "request", unique=True),
)
# `wish`: train or stop. `ending`: why it ends as soon as it holds no slot. `vacated`: failures of assignments up to
# this number have been counted.
TRIALS = Table(
    "trials",
    TABLES,
    *(_key("experiment"), _key("number"), _number("trial_id"), _number("bracket"), _json("hparams"), _number("seed")),
    *(_text("state"), _text("reason"), _text("wish"), _number("target_number"), _optional("target")),
    *(_number("length"), _json("latest"), _maybe("best"), _number("best_length"), _number("batches")),
    *(_text("ending"), _number("num_restarts"), _number("vacated"), _text("best_checkpoint")),
    *(_text("latest_checkpoint"), _text("kind"), Column("reuse_key", String, nullable=False), _json("reused")),
    *(_time("created_at"), _maybe("started_at"), _maybe("ended_at")),
    Index("trials_by_id", "trial_id", unique=True),
    Index("trials_by_reuse_key", "reuse_key"),
)
# What the search acts on, in order: each event with the operations that followed.
SEARCH_EVENTS = Table(
    "search_events",
    TABLES,
    *(_key("experiment"), _key("number"), _time("time"), _json("event"), _json("operations"), _number("batches")),
    *(_text("digest"), _flag("is_planned")),
)
CHECKPOINTS = Table(
    "checkpoints",
    TABLES,
    *(_name("uuid"), _text("job"), _number("experiment"), _number("trial"), _text("uri"), _number("step")),
    *(_number("generation"), _number("num_bytes"), _json("metrics"), _json("metric"), _text("state"), _text("code")),
    *(_time("created_at"), _text("digest")),
    Index("checkpoints_by_trial", "experiment", "trial"),
)
CHECKPOINT_NOTES = Table("checkpoint_notes", TABLES, *(_name("uuid"), _json("metadata")))  # what people write on them
# The rows of deleted models stay, empty: their numbers are not used again.
MODELS = Table(
    "models",
    TABLES,
    *(_key("number"), Column("request", String, nullable=False), _text("name"), _text("description"), _text("notes")),
    *(_json("labels"), _json("metadata"), _text("owner"), _flag("is_archived"), _flag("is_deleted")),
    *(_number("last_version"), _time("created_at"), _time("changed_at")),
    Index("models_by_request", "request", unique=True),
)
MODEL_VERSIONS = Table(
    "model_versions",
    TABLES,
    *(_key("model"), _key("number"), Column("checkpoint", String, nullable=False), _text("name"), _text("comment")),
    *(_text("notes"), _json("labels"), _json("metadata"), _text("owner"), _time("created_at"), _time("changed_at")),
    Index("model_versions_by_checkpoint", "checkpoint"),
)
TEMPLATES = Table(
    "templates",
    TABLES,
    *(_name("name"), _json("config"), _text("written"), _text("owner"), _time("created_at"), _time("changed_at")),
)
ASSIGNMENTS = Table(
    "assignments",
    TABLES,
    *(_key("number"), _text("pool"), _text("agent"), _number("slot"), _number("experiment"), _number("trial")),
    *(_text("state"), _text("reason"), _time("began_at"), _maybe("ended_at")),
)
POOL_AGENTS = Table(
    "pool_agents",
    TABLES,
    *(_name("pool"), _name("agent"), _text("incarnation"), _number("num_slots"), _text("kind"), _time("seen_at")),
    *(_text("state", server_default="enabled"), _text("state_reason", server_default="")),
)
# The values of an experiment's secrets, by their names. Sent only with the orders of its own assignments.
EXPERIMENT_SECRETS = Table("experiment_secrets", TABLES, _key("experiment"), _json("held"))
TRIAL_SECRET = Table("trial_secret", TABLES, _name("secret"))  # one row: what the tokens of trials are made with
# Made where they are missing: an older version that finds them need not know them.
_LATER = MetaData()
ENDED_JOBS = Table("ended_jobs", _LATER, _name("job"), Column("seen_at", Float, nullable=False))
IDENTITY = Table("identity", _LATER, _name("store"))  # one row: a name that no other store has
