"""One schedule after another: each is carried out and judged, and told in a line."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from everstep.errors import EverstepError
from soak import box
from soak.faults import disturb
from soak.job import DisturbedJob
from soak.schedule import Schedule, decide
from soak.verdict import HUNG, KINDS, LEFT, Problem, expectation, judge


@dataclass(slots=True)
class Outcome:
    faults: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def soak(num_faults: int, seed: int, keep: Path | None) -> int:
    """The exit code. The last line is for machines."""
    found: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
    faults = schedules = 0
    is_interrupted = False
    try:
        while faults < num_faults:
            schedule = decide(seed + schedules)
            expectation(schedule)  # now, so that it is not in the schedule's time
            began = time.monotonic()
            outcome = carry_out(schedule, keep)
            schedules += 1
            faults += len(outcome.faults)
            found.update({problem.kind for problem in outcome.problems})
            _tell(schedule, outcome, faults, time.monotonic() - began)
    except KeyboardInterrupt:
        print("interrupted; the unfinished schedule is not counted", flush=True)
        is_interrupted = True
    print(json.dumps({"faults": faults, "schedules": schedules, **found}), flush=True)
    return 1 if any(found.values()) else 130 if is_interrupted else 0


def carry_out(schedule: Schedule, keep: Path | None = None) -> Outcome:
    before, outcome = box.contents(), Outcome()
    with DisturbedJob(schedule) as job:
        try:
            job.await_training()
            outcome.faults = disturb(job, schedule)
            job.let_go()
            job.await_end()
            job.finish()
        except EverstepError as error:
            outcome.problems.append(Problem(HUNG, str(error)))
        outcome.problems += judge(schedule, outcome.faults, job.facts, job.checkpoints)
        if outcome.problems and keep is not None:
            with suppress(shutil.Error):  # sockets, and what goes away meanwhile
                shutil.copytree(job.directory, keep / f"seed-{schedule.seed}", dirs_exist_ok=True)
    outcome.problems += [Problem(LEFT, what) for what in box.left_behind(before)]
    return outcome


def _tell(schedule: Schedule, outcome: Outcome, num_faults: int, seconds: float) -> None:
    kinds = sorted({problem.kind for problem in outcome.problems})
    print(
        f"seed {schedule.seed}: {schedule.door} {schedule.mode}, {len(outcome.faults)} faults ({num_faults} in all),"
        f" {seconds:.1f} s: {' and '.join(kinds) or 'good'} ({' '.join(outcome.faults)})",
        flush=True,
    )
    for problem in outcome.problems:
        print(f"  {problem.kind}: {problem.reason}")
    if outcome.problems:
        print(f"  again: make soak SEED={schedule.seed} FAULTS=1", flush=True)
