"""What is left of a disturbed job: the right bits, every record once, the newest checkpoint whole, and nothing else."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import everstep
from everstep.checkpoint.catalog import find, verify
from everstep.errors import EverstepError
from everstep.storage.local import LocalStorage
from lab import nest
from lab.command import Command
from soak.facts import Fact, Facts
from soak.job import arguments, script_of
from soak.schedule import EXACT, Schedule
from soak.scripts.task import digest

HUNG, BITS, RECORDS, CHECKPOINTS, LEFT = "hung", "wrong_bits", "records_wrong", "checkpoints_lost", "left_behind"
KINDS = (HUNG, BITS, RECORDS, CHECKPOINTS, LEFT)


@dataclass(frozen=True, slots=True)
class Problem:
    kind: str
    reason: str


@cache
def undisturbed(script: Path, *args: str) -> tuple[Fact, ...]:
    """What one process that trains alone tells."""
    with tempfile.TemporaryDirectory(prefix="everstep-") as directory:
        folder = Path(directory)
        told = {"SOAK_FACTS": str(folder / "facts.jsonl")}
        (folder / "go").touch()
        with Command(sys.executable, script, *args, folder=folder, start=nest.start_script, **told) as alone:
            alone.finish()
        facts = Facts(folder / "facts.jsonl")
        return (*facts.of("step"), *facts.of("result"))


def expectation(schedule: Schedule) -> dict[int, str]:
    """The weights after each step, where they can be known."""
    if schedule.mode != EXACT:
        return {}
    return {fact["step"]: fact["digest"] for fact in undisturbed(script_of(schedule), *arguments(schedule))}


def judge(schedule: Schedule, faults: Collection[str], facts: Facts, checkpoints: Path) -> list[Problem]:
    expected = expectation(schedule)
    results = facts.of("result")
    if not results:
        return [Problem(HUNG, "no worker came to the end of the script")]
    back = [] if "kill-all" in faults else went_back(facts)
    return [*bits(facts, expected), *back, *records(results), *checkpoint(checkpoints, results[-1])]


def bits(facts: Facts, expected: dict[int, str]) -> list[Problem]:
    """All workers end with the same weights; in exact mode they have those of an undisturbed run after each step."""
    found: list[Problem] = []
    known = dict(expected)
    for fact in (*(facts.of("step") if expected else ()), *facts.of("result")):
        if known.setdefault(fact["step"], fact["digest"]) != fact["digest"]:
            found.append(Problem(BITS, f"{fact['worker']} has other weights after step {fact['step']}"))
    last = max(fact["step"] for fact in facts.of("result"))
    if expected and last != max(expected):
        found.append(Problem(BITS, f"ended at step {last}, not {max(expected)}"))
    return found


def went_back(facts: Facts) -> list[Problem]:
    """Somebody always held the state: nobody does a step twice, or an earlier one."""
    latest: dict[str, int] = {}
    found: list[Problem] = []
    for fact in facts.of("step"):
        before = latest.get(fact["worker"], 0)
        if fact["step"] <= before:
            found.append(Problem(BITS, f"{fact['worker']} went back from step {before} to {fact['step']}"))
        latest[fact["worker"]] = fact["step"]
    return found


def records(results: list[Fact]) -> list[Problem]:
    return [
        Problem(RECORDS, f"{fact['worker']} trained on some records another number of times: {fact['wrong_records']}")
        for fact in results
        if fact["wrong_records"]
    ]


def checkpoint(folder: Path, result: Fact) -> list[Problem]:
    """The newest is that of the end, whole, and holds what was trained."""
    try:
        return [Problem(CHECKPOINTS, reason) for reason in _broken(folder, result)]
    except (EverstepError, OSError) as error:
        return [Problem(CHECKPOINTS, f"cannot be loaded: {error}")]


def _broken(folder: Path, result: Fact) -> Iterator[str]:
    storage = LocalStorage(str(folder))
    for found in find(storage):
        if found.is_whole:
            yield from map(str, verify(storage, found))
    with everstep.Checkpointer(folder) as checkpointer:
        state = checkpointer.load()
        step = checkpointer.loaded.step if checkpointer.loaded is not None else -1
    if step != result["step"]:
        yield f"the newest is of step {step}, the training ended at {result['step']}"
    elif digest(state["models"][0] if "models" in state else state["model"]) != result["digest"]:
        yield f"that of step {step} holds other weights than the workers"
