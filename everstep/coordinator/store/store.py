"""Keep the rosters and the ledgers: SQLite by default (WAL, every commit flushed to the disk), PostgreSQL by URL.

`save` writes in one transaction what differs between two rosters, so that many changes cost one flush. Workers and
agents report again the facts that are not kept here. One coordinator per store: a second one is turned away. Locks can
be lost (a broken connection, a file system without locks), so each start counts up the store's epoch, and each
transaction checks it: a coordinator that finds another number has lost the store and must stop.
Blocking; knows nothing of asyncio or HTTP."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

from sqlalchemy import Connection, Engine, create_engine, event, insert, select, text, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from everstep.coordinator.roster.facts import Attempt, Generation, Node, NodePart, Roster, Worker
from everstep.coordinator.shards.ledger import Rows
from everstep.coordinator.store.metric_rows import load_reports, save_reports
from everstep.coordinator.store.migrate import bring_up_to_date
from everstep.coordinator.store.shard_rows import load_ledgers, save_ledger
from everstep.coordinator.store.tables import GENERATIONS, JOBS, OWNER, WORKERS
from everstep.coordinator.store.upsert import upsert
from everstep.errors import PermanentError, TemporaryError, UsageError
from everstep.storage import private_file
from everstep.waiting import wait_until
from everstep.wire import Member, MetricReport, MetricsView, Policy

ADVISORY_LOCK = 0x45564552  # "EVER": one coordinator per PostgreSQL database

SEE = "see --store"
LOCK_S = 2.0  # the database may take a moment to notice that a coordinator was killed


class StoreError(TemporaryError):
    """The store did not keep or give something; no reply mentioned it."""


class StoreTaken(PermanentError):
    """Another coordinator has this store now; nothing was written. This one must stop."""


class Store:
    """Used by one thread at a time."""

    def __init__(self, url: str) -> None:
        self._lock_file: TextIO | None = None
        self._lock_connection: Connection | None = None
        self._engine = self._open(url)
        try:
            with self._engine.begin() as connection:
                bring_up_to_date(connection)
                self._epoch = _take(connection)
        except SQLAlchemyError as error:
            raise _not_opened(error) from None

    def _open(self, url: str) -> Engine:
        if "://" not in url:
            url = f"sqlite:///{Path(url).absolute()}"
        if url.startswith("sqlite"):
            return self._open_sqlite(url)
        if url.startswith("postgresql://"):
            url = url.replace("postgresql://", "postgresql+psycopg://", 1)
        engine = create_engine(url, pool_size=1, max_overflow=1, pool_pre_ping=True)
        self._hold_advisory_lock(engine)
        return engine

    def _open_sqlite(self, url: str) -> Engine:
        path = url.partition(":///")[2]
        if not path or path == ":memory:":
            return create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
        self._hold_lock_file(f"{path}.lock")
        if not os.path.exists(path):  # it holds addresses and names, for its owner only
            os.close(private_file.descriptor(path, os.O_WRONLY))
        engine = create_engine(url, connect_args={"check_same_thread": False})

        @event.listens_for(engine, "connect")
        def _configure(connection: Any, _record: Any) -> None:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")

        return engine

    def _hold_lock_file(self, path: str) -> None:
        """Held as long as this process lives; the kernel frees it even after kill -9."""
        try:
            self._lock_file = open(path, "w")  # noqa: SIM115
        except OSError as error:
            raise UsageError(
                f"cannot open the store: {path}: {error.strerror}", hint=SEE, code="store-path-unusable"
            ) from None
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise UsageError(
                    f"another coordinator uses this store ({path} is locked)",
                    hint="stop it, or give another --store",
                    code="store-locked",
                ) from None
            raise UsageError(
                f"cannot lock the store: {path}: {error.strerror}",
                hint="this file system has no locks: give a --store on a local disk, or postgresql://…",
                code="store-not-lockable",
            ) from None

    def _hold_advisory_lock(self, engine: Engine) -> None:
        try:
            connection = self._lock_connection = engine.connect()
            lock = text(f"select pg_try_advisory_lock({ADVISORY_LOCK})")
            is_ours = wait_until(lambda: connection.scalar(lock), LOCK_S, "the lock of the database", pause_s=0.01)
            connection.commit()
        except SQLAlchemyError as error:
            raise _not_opened(error) from None
        if not is_ours:
            raise UsageError(
                "another coordinator uses this database", hint="stop it, or give another --store", code="store-in-use"
            )

    def close(self) -> None:
        if self._lock_connection:
            self._lock_connection.close()
        self._engine.dispose()
        if self._lock_file:
            self._lock_file.close()

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """All of it or nothing, and only while the store is ours. The row stays locked until the end, so a process that
        takes the store meanwhile waits for it."""
        try:
            with self._engine.begin() as connection:
                ours = update(OWNER).where(OWNER.c.epoch == self._epoch).values(epoch=self._epoch)
                if connection.execute(ours).rowcount != 1:
                    raise _taken()
                yield connection
        except SQLAlchemyError as error:
            raise StoreError(f"the store did not keep a change: {_words(error)}", code="store-not-written") from None

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                if connection.scalar(select(OWNER.c.epoch)) != self._epoch:
                    raise _taken()
                yield connection
        except SQLAlchemyError as error:
            raise StoreError(f"the store cannot be read: {_words(error)}", code="store-not-read") from None

    def save(self, before: Roster | None, after: Roster) -> None:
        """Write what differs."""
        with self._writing() as connection:
            self._save_job(connection, before, after)
            self._save_workers(connection, before, after)
            self._save_generation(connection, before, after)

    def load(self, job: str) -> Roster | None:
        with self._reading() as connection:
            return _load(connection, job)

    def generation(self, job: str, number: int) -> Generation | None:
        with self._reading() as connection:
            return _load_generation(connection, job, number)

    def save_ledgers(self, job: str, ledgers: Sequence[Rows]) -> None:
        """Write what changed in them."""
        with self._writing() as connection:
            for rows in ledgers:
                save_ledger(connection, job, rows)

    def load_ledgers(self, job: str) -> list[Rows]:
        with self._reading() as connection:
            return load_ledgers(connection, job)

    def save_reports(self, job: str, reports: Sequence[MetricReport]) -> None:
        """Of metrics."""
        with self._writing() as connection:
            save_reports(connection, job, reports)

    def load_reports(self, job: str, since: int, limit: int) -> MetricsView:
        with self._reading() as connection:
            return load_reports(connection, job, since, limit)

    def _save_job(self, connection: Connection, before: Roster | None, after: Roster) -> None:
        row = {
            "job": after.job,
            "name": after.name,
            "policy": json.dumps(asdict(after.policy)),
            "is_stopped": after.is_stopped,
            "is_finished": after.is_finished,
            "reason": after.reason,
            "attempt": json.dumps(asdict(after.attempt)),
            "num_restarts": after.num_restarts,
        }
        if before is None or _job_facts(before) != _job_facts(after):
            upsert(connection, JOBS, [row])

    def _save_workers(self, connection: Connection, before: Roster | None, after: Roster) -> None:
        kept = before.workers if before else {}
        rows = [
            {"job": after.job, **asdict(worker)}
            for name, worker in after.workers.items()
            if kept.get(name) is not worker
        ]
        upsert(connection, WORKERS, rows)

    def _save_generation(self, connection: Connection, before: Roster | None, after: Roster) -> None:
        kept = before.generation if before else Generation()
        generation, previous = after.generation, after.previous
        if generation.number == kept.number:
            if generation is not kept:
                _save_closing(connection, after.job, generation)
            return
        if generation.number != kept.number + 1:
            raise AssertionError(f"generation {kept.number + 1} would never be kept")
        if previous is not kept and previous.number:
            _save_closing(connection, after.job, previous)
        upsert(connection, GENERATIONS, [_generation_row(after.job, generation)])


def _take(connection: Connection) -> int:
    """The store is ours from now on."""
    epoch = connection.scalar(select(OWNER.c.epoch).with_for_update()) or 0
    if epoch:
        connection.execute(update(OWNER).values(epoch=epoch + 1))
    else:
        connection.execute(insert(OWNER).values(epoch=1))
    return epoch + 1


def _not_opened(error: SQLAlchemyError) -> UsageError:
    return UsageError(f"cannot open the store: {_words(error)}", hint=SEE, code="store-not-opened")


def _taken() -> StoreTaken:
    return StoreTaken(
        "another coordinator has taken this store",
        hint="run only one coordinator per store: stop one of them",
        code="store-taken",
    )


def _job_facts(roster: Roster) -> tuple[Any, ...]:
    return (roster.is_over, roster.reason, roster.attempt, roster.num_restarts)


def _attempt(text: str) -> Attempt:
    values = json.loads(text)
    parts = tuple(NodePart(**{**part, "workers": tuple(part["workers"])}) for part in values.pop("parts"))
    return Attempt(**values, parts=parts)


def _save_closing(connection: Connection, job: str, generation: Generation) -> None:
    connection.execute(
        update(GENERATIONS)
        .where(GENERATIONS.c.job == job, GENERATIONS.c.number == generation.number)
        .values(
            is_closed=generation.is_closed,
            is_broken=generation.is_broken,
            must_probe=generation.must_probe,
            is_lost=generation.is_lost,
            reason=generation.reason,
        )
    )


def _generation_row(job: str, generation: Generation) -> dict[str, Any]:
    return {
        "job": job,
        "number": generation.number,
        "members": json.dumps([[each.worker, each.address, each.probe_port] for each in generation.members]),
        "store_port": generation.store_port,
        "continues": generation.continues,
        "max_workers": generation.max_workers,
        "left_out": json.dumps(dict(generation.left_out)),
        "is_closed": generation.is_closed,
        "is_broken": generation.is_broken,
        "must_probe": generation.must_probe,
        "is_lost": generation.is_lost,
        "reason": generation.reason,
    }


def _load(connection: Connection, job: str) -> Roster | None:
    row = connection.execute(select(JOBS).where(JOBS.c.job == job)).mappings().one_or_none()
    if row is None:
        return None
    found = connection.execute(select(WORKERS).where(WORKERS.c.job == job).order_by(WORKERS.c.number)).mappings()
    workers = [Worker(**{name: value for name, value in each.items() if name != "job"}) for each in found]
    last = connection.scalar(
        select(GENERATIONS.c.number).where(GENERATIONS.c.job == job).order_by(GENERATIONS.c.number.desc()).limit(1)
    )
    return Roster(
        job=job,
        name=row["name"],
        policy=Policy(**json.loads(row["policy"])),
        workers={each.worker: each for each in workers},
        generation=(_load_generation(connection, job, last) if last else None) or Generation(),
        is_stopped=row["is_stopped"],
        is_finished=row["is_finished"],
        reason=row["reason"],
        attempt=_attempt(row["attempt"]),
        num_restarts=row["num_restarts"],
        num_announced=sum(1 for each in workers if each.incarnation),
        reserved={(each.agent, each.request): each.worker for each in workers},
    )


def _load_generation(connection: Connection, job: str, number: int) -> Generation | None:
    query = select(GENERATIONS).where(GENERATIONS.c.job == job, GENERATIONS.c.number == number)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        return None
    members = tuple(
        Member(worker=worker, rank=rank, address=address, probe_port=probe_port)
        for rank, (worker, address, probe_port) in enumerate(json.loads(row["members"]))
    )
    values = {
        name: row[name]
        for name in ("number", "store_port", "continues", "max_workers", "is_closed", "is_broken", "is_lost")
    }
    return Generation(
        members=members,
        left_out=json.loads(row["left_out"]),
        must_probe=row["must_probe"],
        reason=row["reason"],
        **values,
    )


def restored(roster: Roster, now: float, grace_s: float) -> Roster:
    """A roster as read from the store: all get the full time again, from when they can have reached us."""
    return replace(
        roster,
        formed_at=now,
        closed_at=now + grace_s,
        lost_at={name: now for name, worker in roster.workers.items() if worker.status == "lost"},
        nodes={part.agent: _expected(part, order) for order, part in enumerate(roster.attempt.parts)},
        nodes_at=now,
        attempt_at=now,
    )


def _expected(part: NodePart, order: int) -> Node:
    """A node that is to report again."""
    return Node(agent=part.agent, incarnation=part.incarnation, order=order, num_workers=len(part.workers), address="")


def _words(error: SQLAlchemyError) -> str:
    """The cause without the statement, its values or the URL: they may hold a password."""
    return str(getattr(error, "orig", None) or type(error).__name__).strip().splitlines()[0]
