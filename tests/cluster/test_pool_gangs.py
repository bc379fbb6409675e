"""A trial that needs all slots, behind many that need one, with real processes."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from lab.command import until
from lab.experiment_stage import FULL, LOSS, ExperimentStage

SLOTS = 4
HELD, SHORT = 5, 3  # the gang does not reach the batch at which small trials are held


def write(stage: ExperimentStage, name: str, num_trials: int, batches: int, **resources: Any) -> str:
    searcher = {"name": "random", "metric": LOSS, "max_trials": num_trials, "max_length": {"batches": batches}}
    return stage.write(name, searcher, resources=resources, restarts=0)


def given(stage: ExperimentStage) -> list[int]:
    """The experiments that got slots, in this order."""
    with sqlite3.connect(f"file:{stage.files.coordinator.store}?mode=ro", uri=True) as store:
        return [row[0] for row in store.execute("select experiment from assignments order by number")]


def test_slots_that_are_freed_wait_for_the_gang_although_small_trials_want_them(tmp_path: Path) -> None:
    with ExperimentStage(tmp_path, slots=SLOTS) as stage:
        for trial in range(1, SLOTS + 1):
            stage.hold(trial, HELD)
        small = stage.create(write(stage, "small", 6, FULL, slots_per_trial=1))
        for trial in range(1, SLOTS + 1):
            stage.wait_held(trial, HELD)
        gang = stage.create(write(stage, "gang", 1, SHORT, slots_per_trial=SLOTS, min_slots=SLOTS))
        until(lambda: {each.state for each in stage.trials.held()} == {"parking"}, stage.whole_story)
        (stage.gates / f"gate-1-{HELD}").unlink()  # it saves and leaves; the others are still in their step
        told = "needs 4 slots; 1 is free; others are giving theirs back"
        until(lambda: stage.trials.trials(2)[0].reason == told, lambda: f"{stage.trials.trials(2)[0].reason}")
        assert given(stage) == [1] * SLOTS
        stage.let_on()
        assert stage.end_of(gang)[1][1]["length"] == SHORT
        assert given(stage)[: 2 * SLOTS] == [1] * SLOTS + [2] * SLOTS, "no small trial was before it"
        assert {each["state"] for each in stage.end_of(small)[1].values()} == {"COMPLETED"}
        assert [each.num_restarts for each in stage.trials.trials(1)] == [0] * 6
