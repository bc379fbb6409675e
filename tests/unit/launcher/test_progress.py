"""The progress line and the figures in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.launcher.progress import Goodput, JobProgress, ScriptProgress, StepPace, clock, event_line, progress_line

NOW = JobProgress(num_steps=120, steps_per_s=9.5, alive=("w0", "w1", "w3"), generation="generation 2", elapsed_s=61.0)


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (80, "step 120 · 9.5 steps/s · generation 2 · w0 w1 w3 · 1:01"),
        (56, "step 120 · 9.5 steps/s · generation 2 · w0 w1 w3 · 1:01"),
        (55, "step 120 · 9.5 steps/s · generation 2 · 3 workers"),
        (40, "step 120 · generation 2"),
        (10, "step 120"),
        (5, "step"),
    ],
)
def test_the_progress_line_fits(width: int, line: str) -> None:
    assert progress_line(NOW, width=width) == line


def test_a_script_that_knows_no_steps_shows_its_workers_and_the_time() -> None:
    now = replace(NOW, num_steps=0, steps_per_s=None, generation="")
    assert progress_line(now, width=80, dot="|") == "w0 w1 w3 | 1:01"
    assert progress_line(replace(now, alive=()), width=80) == ""
    assert clock(3661) == "1:01:01"


def test_a_trainer_that_knows_its_end_says_how_far_it_is_and_how_long_it_takes() -> None:
    training = ScriptProgress()
    training.hear({"event": "regroup.settled", "step": 100, "rank": 1, "size": 2})
    training.hear({"event": "regroup.settled", "step": 110, "rank": 1, "size": 2})
    told = {"event": "training.progress", "step": 118, "epoch": 1, "num_epochs": 5, "num_steps": 310, "loss": 0.28754}
    training.hear(told)
    now = replace(NOW, training=training.shown, left_s=training.left_s(120, 9.5))
    line = "epoch 2/5 · step 118/310 · loss 0.2875 · 9.5 steps/s · generation 2 · w0 w1 w3 · 1:01, 0:20 left"
    assert progress_line(now, width=120) == line
    assert training.first_step == 100  # a resumed run has done no more than what came after it

    training.hear(told | {"num_epochs": None, "num_steps": None, "loss": None})
    assert training.shown == "epoch 2 · step 118"
    assert training.left_s(120, 9.5) is None


def test_the_pace_is_that_of_the_last_seconds() -> None:
    pace = StepPace(over_s=10.0)
    assert pace.at(0, 0.0) is None
    assert pace.at(10, 100.0) is None
    assert pace.at(20, 105.0) == 2.0
    assert pace.at(70, 115.0) == 5.0


def committed(step: int, generation: int, t: float) -> dict[str, object]:
    return {"event": "step.committed", "step": step, "generation": generation, "t": t}


def test_goodput_is_the_time_between_commits_of_one_generation() -> None:
    goodput = Goodput()
    assert goodput.good_s is None
    goodput.hear({"event": "worker.lost"})
    for event in (
        committed(1, 1, 10.0),
        committed(2, 1, 11.0),  # + 1
        committed(2, 1, 11.1),  # the other worker's
        committed(3, 2, 15.0),  # a regroup between them
        committed(4, 2, 16.5),  # + 1.5
        committed(9, 2, 20.0),  # some were not seen
    ):
        goodput.hear(event)
    assert goodput.good_s == 2.5


def test_a_slow_worker_is_also_named_in_the_output() -> None:
    said = {"worker": "w3", "reason": "w3 is slow: it takes 2.0 times as long", "factor": 2.0}
    assert event_line({"event": "worker.slow", **said}) == said["reason"]
    assert event_line({"event": "plan.dealt", "reason": "…"}) is None
