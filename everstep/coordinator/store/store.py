"""Keep the rosters and the ledgers: SQLite by default (WAL, every commit flushed to the disk), PostgreSQL by URL.

`save` writes in one transaction what differs between two rosters, so that many changes cost one flush. Workers and
agents report again the facts that are not kept here. One coordinator per store: a second one is turned away. Locks can
be lost (a broken connection, a file system without locks), so each start counts up the store's epoch, and each
transaction checks it: a coordinator that finds another number has lost the store and must stop.
Blocking, but for `in_thread`; knows nothing of HTTP."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import secrets
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from typing import Any, TextIO, TypeVar

from sqlalchemy import (
    Connection,
    Engine,
    RowMapping,
    Table,
    bindparam,
    delete,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

from everstep.coordinator.prometheus_text import Histogram
from everstep.coordinator.roster.facts import Attempt, Generation, Node, NodePart, Roster, Worker
from everstep.coordinator.roster.summary import PastFacts
from everstep.coordinator.shards.ledger import Rows
from everstep.coordinator.store.group_commit import GroupCommit
from everstep.coordinator.store.mark_rows import load_past, mark_rows
from everstep.coordinator.store.migrate import bring_up_to_date
from everstep.coordinator.store.tables import (
    BAD_SHARDS,
    CHECKPOINTS,
    DATASETS,
    ENDED_JOBS,
    EXPORTED_SPANS,
    GENERATIONS,
    HOLDERS,
    IDENTITY,
    JOBS,
    MARKS,
    OWNER,
    PAGE_SESSIONS,
    TABLES,
    TRIAL_SECRET,
    WAITING_LEASES,
    WORKERS,
)
from everstep.coordinator.vital_tasks import die
from everstep.errors import UsageError
from everstep.page.sessions import Session
from everstep.storage.database import StoreError, StoreTaken, open_engine, sqlite_path, upsert, words
from everstep.waiting import wait_until
from everstep.wire import Mark, Member, Policy

T = TypeVar("T")

ADVISORY_LOCK = 0x45564552  # "EVER": one coordinator per PostgreSQL database

SEE = "see --store"
LOCK_S = 2.0  # the database may take a moment to notice that a coordinator was killed


class Store:
    """Used by one thread at a time."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.latency = Histogram()  # of calls, with the time that they wait for their turn
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._changes = GroupCommit(self._thread, self._writing)
        self._lock_file: TextIO | None = None
        self._lock_connection: Connection | None = None
        self._engine = self._open(url)
        try:
            with self._engine.begin() as connection:
                bring_up_to_date(connection)
                ENDED_JOBS.metadata.create_all(connection)
                self.identity = _identity(connection)
                self.trial_secret = _trial_secret(connection)
                self.epoch = _take(connection)
        except SQLAlchemyError as error:
            raise _not_opened(error) from None

    def _open(self, url: str) -> Engine:
        if path := sqlite_path(url):
            self._hold_lock_file(f"{path}.lock")
        engine = open_engine(url)
        if engine.dialect.name != "sqlite":
            self._hold_advisory_lock(engine)
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

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Make calls in a thread of the store's own, so that no flush to a disk holds up a heartbeat."""
        return await self._answer(asyncio.get_running_loop().run_in_executor(self._thread, call))

    async def _answer(self, made: asyncio.Future[T]) -> T:
        began = time.perf_counter()
        try:
            return await made
        except StoreTaken as error:
            die("the coordinator stops", error)
            raise
        finally:
            self.latency.note(time.perf_counter() - began)

    def close(self) -> None:
        self._thread.shutdown()
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
                ours = update(OWNER).where(OWNER.c.epoch == self.epoch).values(epoch=self.epoch)
                if connection.execute(ours).rowcount != 1:
                    raise _taken()
                yield connection
        except (
            SQLAlchemyError,
            OverflowError,
        ) as error:  # OverflowError: sqlite3's own, for a number it has no room for
            raise StoreError(f"the store did not keep a change: {words(error)}", code="store-not-written") from None

    def read(self, query: Callable[[Connection], T]) -> T:
        """In one transaction."""
        with reading(self._engine, self.epoch) as connection:
            return query(connection)

    async def write(self, change: Callable[[Connection], T]) -> T:
        """All of it or nothing, by the store's thread, in a transaction with others that wait. `change` may be called
        again, if one of the others fails."""
        return await self._answer(asyncio.wrap_future(self._changes.submit(change)))

    def save(self, before: Roster | None, after: Roster, marks: Sequence[Mark] = ()) -> None:
        """Write what differs, with the marks that it leaves on the band of workers."""
        with self._writing() as connection:
            upsert(connection, MARKS, mark_rows(after.job, marks))
            if before is None or _job_facts(before) != _job_facts(after):
                upsert(connection, JOBS, [_job_row(after)])
            known = before.workers if before else {}
            changed = [worker for name, worker in after.workers.items() if known.get(name) is not worker]
            upsert(connection, WORKERS, [{"job": after.job, **asdict(worker)} for worker in changed])
            _save_generation(connection, before.generation if before else Generation(), after)

    def load(self, job: str) -> Roster | None:
        return self.read(lambda connection: load_roster(connection, job))

    def past(self, job: str) -> tuple[int, PastFacts]:
        """The number of the job's latest mark, and what its marks tell."""
        return self.read(lambda connection: load_past(connection, job))

    def sessions(self) -> list[Session]:
        """Those of the page that are open."""
        return [Session(**row) for row in self.read(lambda connection: _find(connection, PAGE_SESSIONS))]

    async def keep_session(self, session: Session, evicted: Sequence[Session] = ()) -> None:
        """`evicted`: those that made room for it."""

        def keep() -> None:
            is_gone = PAGE_SESSIONS.c.digest.in_([each.digest for each in evicted])
            with self._writing() as connection:
                connection.execute(delete(PAGE_SESSIONS).where(is_gone | (PAGE_SESSIONS.c.expires_at <= time.time())))
                upsert(connection, PAGE_SESSIONS, [asdict(session)])

        await self.in_thread(keep)

    async def drop_session(self, session: Session) -> None:
        def drop() -> None:
            with self._writing() as connection:
                connection.execute(delete(PAGE_SESSIONS).where(PAGE_SESSIONS.c.digest == session.digest))

        await self.in_thread(drop)

    def jobs_ended(self, now: float, before: float, limit: int) -> list[str]:
        """Of the jobs that are over, those that were so at a time before this one. When a job was first seen to be over
        is kept here."""
        is_over = JOBS.c.is_finished | JOBS.c.is_stopped
        with self._writing() as connection:
            new = select(JOBS.c.job).where(is_over, JOBS.c.job.not_in(select(ENDED_JOBS.c.job)))
            if rows := [{"job": job, "seen_at": now} for job in connection.scalars(new)]:
                connection.execute(insert(ENDED_JOBS), rows)
            again = select(JOBS.c.job).where(~is_over)  # opened again: a trial's
            connection.execute(delete(ENDED_JOBS).where(ENDED_JOBS.c.job.in_(again)))
            old = select(ENDED_JOBS.c.job).where(ENDED_JOBS.c.seen_at < before).order_by(ENDED_JOBS.c.seen_at)
            return list(connection.scalars(old.limit(limit)))

    def drop(self, job: str) -> None:
        """Remove all rows of a job. Its checkpoints are found by their UUIDs for as long as they exist."""
        tables = [each for each in TABLES.sorted_tables if "job" in each.columns and each is not CHECKPOINTS]
        with self._writing() as connection:
            for table in (*tables, ENDED_JOBS):
                connection.execute(delete(table).where(table.c.job == job))
            connection.execute(delete(EXPORTED_SPANS).where(EXPORTED_SPANS.c.subject == job))

    def save_ledgers(self, job: str, ledgers: Sequence[Rows]) -> None:
        """Write what changed in them."""
        with self._writing() as connection:
            for rows in ledgers:
                keys = {"job": job, "dataset": rows.dataset}
                for name, kept in rows.kept.items():
                    upsert(connection, TABLES.tables[name], [{**keys, **row} for row in kept])
                for name, removed in rows.removed.items():
                    if gone := [_marked({**keys, **key}) for key in removed]:
                        connection.execute(_deletion(TABLES.tables[name]), gone)

    def load_ledgers(self, job: str) -> list[Rows]:
        tables = (DATASETS, HOLDERS, WAITING_LEASES, BAD_SHARDS)
        kept = self.read(lambda connection: {table.name: _find(connection, table, job=job) for table in tables})
        found: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for name, rows in kept.items():
            for row in rows:
                dataset = row.pop("dataset")
                found.setdefault(dataset, {table: [] for table in kept})[name].append(row)
        return [Rows(dataset=dataset, kept=rows) for dataset, rows in found.items()]


@contextmanager
def reading(engine: Engine, epoch: int) -> Iterator[Connection]:
    """One transaction, while the store is that of the coordinator with this epoch."""
    try:
        with engine.begin() as connection:
            if connection.scalar(select(OWNER.c.epoch)) != epoch:
                raise _taken()
            yield connection
    except SQLAlchemyError as error:
        raise StoreError(f"the store cannot be read: {words(error)}", code="store-not-read") from None


# --- rows and statements ---


@cache
def _deletion(table: Table) -> Any:
    """By primary key, for many rows at once; a parameter must not have a column's name."""
    return delete(table).where(*(column == bindparam(f"{column.name}_") for column in table.primary_key))


def _marked(key: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}_": value for name, value in key.items()}


def _find(connection: Connection, table: Table, **where: Any) -> list[dict[str, Any]]:
    """The rows with these values, in the order of their keys, without the job."""
    query = select(table).where(*(table.c[name] == value for name, value in where.items())).order_by(*table.primary_key)
    return [_decoded(table, row) for row in connection.execute(query).mappings()]


def _decoded(table: Table, row: RowMapping) -> dict[str, Any]:
    columns = [each for each in table.columns if each.name != "job"]
    return {each.name: json.loads(row[each.name]) if "is_json" in each.info else row[each.name] for each in columns}


def _identity(connection: Connection) -> str:
    """Made once: what a trial leaves on a machine is named by it, and is not mistaken for another coordinator's."""
    known = connection.scalar(select(IDENTITY.c.store))
    if known is None:
        known = uuid.uuid4().hex[:12]
        connection.execute(insert(IDENTITY), {"store": known})
    return str(known)


def _trial_secret(connection: Connection) -> bytes:
    """Made once: the tokens of trials outlive the coordinator's process."""
    known = connection.scalar(select(TRIAL_SECRET.c.secret))
    if known is None:
        known = secrets.token_hex(32)
        connection.execute(insert(TRIAL_SECRET), {"secret": known})
    return bytes.fromhex(known)


def _take(connection: Connection) -> int:
    """The store is ours from now on."""
    epoch = connection.scalar(select(OWNER.c.epoch).with_for_update()) or 0
    if epoch:
        connection.execute(update(OWNER).values(epoch=epoch + 1))
    else:
        connection.execute(insert(OWNER).values(epoch=1))
    return epoch + 1


def _not_opened(error: SQLAlchemyError) -> UsageError:
    return UsageError(f"cannot open the store: {words(error)}", hint=SEE, code="store-not-opened")


def _taken() -> StoreTaken:
    return StoreTaken(
        "another coordinator has taken this store",
        hint="run only one coordinator per store: stop one of them",
        code="store-taken",
    )


def _job_facts(roster: Roster) -> tuple[Any, ...]:
    return (roster.is_over, roster.reason, roster.attempt, roster.num_restarts)


def _job_row(roster: Roster) -> dict[str, Any]:
    names = ("job", "name", "is_stopped", "is_finished", "reason", "num_restarts", "config")
    row = {name: getattr(roster, name) for name in names}
    return {**row, "policy": asdict(roster.policy), "attempt": asdict(roster.attempt)}


def _save_generation(connection: Connection, kept: Generation, after: Roster) -> None:
    generation, previous = after.generation, after.previous
    if generation.number == kept.number:
        if generation is not kept:
            _save_closing(connection, after.job, generation)
        return
    if generation.number != kept.number + 1:
        raise AssertionError(f"generation {kept.number + 1} would never be kept")
    if previous is not kept and previous.number:
        _save_closing(connection, after.job, previous)
    members = [[each.worker, each.address, each.probe_port] for each in generation.members]
    facts = {name: getattr(generation, name) for name in (*_FORMED, *_CLOSING)}
    row = {"job": after.job, "members": members, "left_out": dict(generation.left_out), **facts}
    upsert(connection, GENERATIONS, [row])


_FORMED = ("number", "store_port", "continues", "max_workers")
_CLOSING = ("is_closed", "is_broken", "must_probe", "is_lost", "reason")


def _save_closing(connection: Connection, job: str, generation: Generation) -> None:
    this = update(GENERATIONS).where(GENERATIONS.c.job == job, GENERATIONS.c.number == generation.number)
    connection.execute(this.values({name: getattr(generation, name) for name in _CLOSING}))


def load_roster(connection: Connection, job: str) -> Roster | None:
    found = _find(connection, JOBS, job=job)
    if not found:
        return None
    workers = sorted((Worker(**row) for row in _find(connection, WORKERS, job=job)), key=lambda each: each.number)
    last = connection.scalar(select(func.max(GENERATIONS.c.number)).where(GENERATIONS.c.job == job))
    attempt = found[0].pop("attempt")
    parts = tuple(NodePart(**{**part, "workers": tuple(part["workers"])}) for part in attempt.pop("parts"))
    return Roster(
        job=job,
        policy=Policy(**found[0].pop("policy")),
        attempt=Attempt(**attempt, parts=parts),
        workers={each.worker: each for each in workers},
        generation=(load_generation(connection, job, last) if last else None) or Generation(),
        num_announced=sum(1 for each in workers if each.incarnation),
        reserved={(each.agent, each.request): each.worker for each in workers},
        **found[0],
    )


def load_generation(connection: Connection, job: str, number: int) -> Generation | None:
    found = _find(connection, GENERATIONS, job=job, number=number)
    if not found:
        return None
    members = tuple(
        Member(worker=worker, rank=rank, address=address, probe_port=probe_port)
        for rank, (worker, address, probe_port) in enumerate(found[0].pop("members"))
    )
    return Generation(members=members, **found[0])


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
