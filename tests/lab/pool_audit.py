"""What a dead coordinator has left in its store: read between two coordinators, and compared with what all were told,
and with what the store held before."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table, select

from everstep import wire
from everstep.coordinator.pool.facts import LIVE
from everstep.coordinator.store.tables import ASSIGNMENTS, EXPERIMENTS, SEARCH_EVENTS, TRIALS
from everstep.storage.database import open_engine
from lab.pool_load import SEARCHES, Given, Heard

Row = dict[str, Any]


class Audit:
    def __init__(self, store: str, heard: Heard) -> None:
        self._store, self._heard = store, heard
        self._places: dict[int, tuple[Any, ...]] = {}  # of assignments
        self._trials: dict[tuple[int, int], tuple[Any, ...]] = {}  # what never changes, and how they ended
        self._winners: dict[int, Any] = {}  # of searches that are complete

    def check(self) -> None:
        # Before the store is read: what is told later may not be in it yet.
        given, experiments = dict(self._heard.given), dict(self._heard.experiments)
        engine = open_engine(self._store)
        try:
            with engine.connect() as connection:
                self._check_assignments(_rows(connection, ASSIGNMENTS), given)
                self._check_trials(_rows(connection, TRIALS))
                found = _rows(connection, EXPERIMENTS)
                assert experiments.keys() <= {each["number"] for each in found}, "an experiment is forgotten"
                assert len({each["request"] for each in found}) == len(found)
                self._check_winners(found)
                self._check_events(_rows(connection, SEARCH_EVENTS))
        finally:
            engine.dispose()

    def _check_assignments(self, rows: Sequence[Row], given: dict[int, Given]) -> None:
        known = {each["number"]: each for each in rows}
        assert given.keys() <= known.keys(), "an assignment was told before it was stored"
        for number, told in given.items():
            row = known[number]
            stored = (row["agent"], row["slot"], row["experiment"], row["trial"])
            assert stored == (told.agent, told.slot, told.experiment, told.trial), (number, stored, told)
        live = [each for each in rows if each["state"] in LIVE]
        slots = Counter((each["pool"], each["agent"], each["slot"]) for each in live)
        assert max(slots.values(), default=0) <= 1, f"a slot has two assignments: {slots.most_common(1)}"
        for each in rows:
            place = (each["agent"], each["slot"], each["experiment"], each["trial"], each["began_at"])
            assert self._places.setdefault(each["number"], place) == place, f"assignment {each['number']} has changed"
        held = Counter((each["experiment"], each["trial"]) for each in live)
        most = max(each.get("max_slots", 1) for each in SEARCHES.values())
        assert max(held.values(), default=0) <= most, f"a trial has too many slots: {held.most_common(1)}"

    def _check_trials(self, rows: Sequence[Row]) -> None:
        ids = [each["trial_id"] for each in rows]
        assert len(set(ids)) == len(ids), "two trials have one ID"
        found = {(each["experiment"], each["number"]): each for each in rows}
        assert self._trials.keys() <= found.keys(), "a trial is lost"
        for key, row in found.items():
            ended = row["state"] if row["state"] in wire.ENDED else ""
            facts = (row["trial_id"], row["hparams"], row["seed"])
            before = self._trials.get(key, (*facts, ""))
            assert before[:3] == facts and before[3] in ("", ended), f"trial {key} has changed: {before}, {row}"
            self._trials[key] = (*facts, ended)

    def _check_winners(self, rows: Sequence[Row]) -> None:
        for each in rows:
            number, summary = each["number"], json.loads(each["summary"])
            assert number not in self._winners or each["state"] == wire.COMPLETED, f"experiment {number} is open again"
            if each["state"] == wire.COMPLETED:
                best = summary["best"]
                winner = (best["trial"], best["metric"], best["length"])
                assert self._winners.setdefault(number, winner) == winner, f"experiment {number} has a second winner"

    def _check_events(self, rows: Sequence[Row]) -> None:
        """In each experiment without a gap, and each result once."""
        numbers: dict[int, list[int]] = {}
        results: Counter[tuple[int, int, int]] = Counter()
        for each in rows:
            numbers.setdefault(each["experiment"], []).append(each["number"])
            event = json.loads(each["event"])
            if event["kind"] == "validated":
                results[each["experiment"], event["trial"], event["length"]] += 1
        assert all(found == list(range(1, len(found) + 1)) for found in numbers.values())
        assert max(results.values(), default=0) <= 1, f"a result counts twice: {results.most_common(1)}"

    def winners(self, search: str) -> dict[int, Any]:
        """Of all complete searches of this kind, by experiment."""
        return {number: each for number, each in self._winners.items() if self._heard.experiments.get(number) == search}


def _rows(connection: Connection, table: Table) -> list[Row]:
    return [dict(each) for each in connection.execute(select(table).order_by(*table.primary_key)).mappings()]
