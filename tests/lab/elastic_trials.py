"""Trials that grow and shrink on the local service, and how a story waits for that."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from everstep.testing.tape import Tape, is_match
from everstep.wire import JobView, WorkerView
from lab.command import until
from lab.experiment_stage import FULL, LOSS, ExperimentStage

ELASTIC: dict[str, Any] = {"resources": {"slots_per_trial": 4}, "restarts": 0}


def single(batches: int = FULL) -> dict[str, Any]:
    return {"name": "single", "metric": LOSS, "max_length": {"batches": batches}}


def until_slots(stage: ExperimentStage, experiment: int, number: int) -> None:
    until(lambda: stage.view(experiment).num_slots == number, stage.whole_story)


def job_of(stage: ExperimentStage, job: str) -> JobView:
    with stage.coordinator(job) as coordinator:
        return coordinator.view()


def until_ready(stage: ExperimentStage, job: str, number: int) -> None:
    """So many of its workers are in its generation, or stand ready for the next; and the former know of the latter, so
    that these join after the present step."""

    def is_ready() -> bool:
        view = job_of(stage, job)
        members = [each for each in view.workers if each.status == "member"]
        num_waiting = sum(each.status == "waiting" for each in view.workers)
        if len(members) + num_waiting != number:
            return False
        return not num_waiting or any(_knows_newcomers(stage, each, view.generation) for each in members)

    until(is_ready, stage.whole_story)


def _knows_newcomers(stage: ExperimentStage, member: WorkerView, generation: int) -> bool:
    """By the events of its assignment."""
    tape = Tape(stage.folder / "home/local/agent/assignments" / member.agent.rpartition("-")[2] / "events.jsonl")
    known = [each["number"] for each in tape.read() if is_match(each, "newcomers.known", {"generation": generation})]
    return bool(known and known[-1])


def released(stage: ExperimentStage) -> list[int]:
    """The assignments whose workers were asked to leave."""
    logs = (stage.folder / "home/local/agent/assignments").glob("*/node.log")
    return sorted(int(each.parent.name) for each in logs if "SIGTERM" in each.read_text())


def assert_slots_were_fenced(store: Path) -> None:
    """No slot was given again before its last assignment was over, nor with a number that is not higher."""
    by_slot = defaultdict(list)
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as database:
        rows = database.execute("SELECT pool, agent, slot, number, began_at, ended_at FROM assignments ORDER BY number")
        for *slot, number, began_at, ended_at in rows:
            by_slot[tuple(slot)].append((number, began_at, ended_at))
    assert by_slot
    for slot, given in by_slot.items():
        for (before, _, ended_at), (after, began_at, _) in pairwise(given):
            assert ended_at is not None and ended_at <= began_at, f"{slot}: {before} overlaps {after}: {given}"
