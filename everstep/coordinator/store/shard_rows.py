"""Ledgers as rows of the store and back. Blocking; part of a transaction that `store` opens and closes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, bindparam, delete, select

from everstep.coordinator.shards.leasing import HeldLease, Holder
from everstep.coordinator.shards.ledger import Bad, DatasetMark, Rows
from everstep.coordinator.store.tables import BAD_SHARDS, DATASETS, HOLDERS, WAITING_LEASES
from everstep.coordinator.store.upsert import upsert
from everstep.ranges import Ranges
from everstep.wire import DatasetSpec, RefusedPart


def _deletion(table: Table) -> Any:
    """By primary key, for many rows at once; a parameter must not have a column's name."""
    return delete(table).where(*(column == bindparam(f"{column.name}_") for column in table.primary_key))


_NO_HOLDER, _NOT_WAITING, _NOT_BAD = _deletion(HOLDERS), _deletion(WAITING_LEASES), _deletion(BAD_SHARDS)


def save_ledger(connection: Connection, job: str, rows: Rows) -> None:
    where = {"job": job, "dataset": rows.dataset}
    mark = {"spec": json.dumps(asdict(rows.spec)), **asdict(rows.mark)}
    upsert(connection, DATASETS, [where | mark])
    upsert(connection, HOLDERS, [where | _holder_row(each) for each in rows.holders])
    upsert(connection, WAITING_LEASES, [where | _waiting_row(each) for each in rows.waiting])
    upsert(connection, BAD_SHARDS, [where | _bad_row(each) for each in rows.bad])
    _remove(connection, job, rows)


def _remove(connection: Connection, job: str, rows: Rows) -> None:
    which = {"job_": job, "dataset_": rows.dataset}
    removed: dict[Any, list[dict[str, Any]]] = {
        _NO_HOLDER: [which | {"worker_": worker, "incarnation_": process} for worker, process in rows.gone],
        _NOT_WAITING: [which | {"lease_": each} for each in rows.ended],
        _NOT_BAD: [which | {"start_": each} for each in rows.mended],
    }
    for statement, values in removed.items():
        if values:
            connection.execute(statement, values)


def load_ledgers(connection: Connection, job: str) -> list[Rows]:
    found = connection.execute(select(DATASETS).where(DATASETS.c.job == job)).mappings().all()
    return [_load(connection, job, row) for row in found]


def _load(connection: Connection, job: str, row: RowMapping) -> Rows:
    def of(table: Table) -> Iterable[RowMapping]:
        query = select(table).where(table.c.job == job, table.c.dataset == row["dataset"])
        return connection.execute(query.order_by(*table.primary_key)).mappings()

    return Rows(
        dataset=row["dataset"],
        spec=DatasetSpec(**json.loads(row["spec"])),
        mark=DatasetMark(**{name: row[name] for name in ("next", "next_lease", "settled", "restored")}),
        holders=[_holder(each) for each in of(HOLDERS)],
        waiting=[
            HeldLease(left=((each["start"], each["stop"]),), **_some(each, "lease", "start", "stop", "is_takeover"))
            for each in of(WAITING_LEASES)
        ],
        bad=[
            Bad(skipped=_ranges(json.loads(each["skipped"])), **_some(each, "start", "failures", "reason"))
            for each in of(BAD_SHARDS)
        ],
    )


def _holder_row(holder: Holder) -> dict[str, Any]:
    leases = [
        [each.lease, each.start, each.stop, each.left, each.request, each.is_takeover]
        for each in holder.leases.values()
    ]
    return {
        "worker": holder.worker,
        "incarnation": holder.incarnation,
        "request": holder.request,
        "generation": holder.generation,
        "refused": json.dumps([asdict(each) for each in holder.refused]) if holder.refused else "[]",
        "leases": json.dumps(leases) if leases else "[]",
    }


def _holder(row: RowMapping) -> Holder:
    leases = [
        HeldLease(lease=lease, start=start, stop=stop, left=_ranges(left), request=request, is_takeover=is_takeover)
        for lease, start, stop, left, request, is_takeover in json.loads(row["leases"])
    ]
    return Holder(
        refused=tuple(RefusedPart(**each) for each in json.loads(row["refused"])),
        leases={each.lease: each for each in leases},
        **_some(row, "worker", "incarnation", "request", "generation"),
    )


def _waiting_row(lease: HeldLease) -> dict[str, Any]:
    return {"lease": lease.lease, "start": lease.start, "stop": lease.stop, "is_takeover": lease.is_takeover}


def _bad_row(bad: Bad) -> dict[str, Any]:
    return asdict(bad) | {"skipped": json.dumps(bad.skipped)}


def _some(row: RowMapping, *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names}


def _ranges(pairs: Iterable[Sequence[int]]) -> Ranges:
    return tuple((start, stop) for start, stop in pairs)
