"""How long earlier trials took: from their start to their first result."""

from __future__ import annotations

from typing import Any

from everstep import wire
from everstep.jobs.experiments import first_results


def trial(number: int, **changed: Any) -> wire.TrialView:
    known: dict[str, Any] = {
        "experiment": 1,
        "trial": number,
        "trial_id": number,
        "job": f"e1-t{number}",
        "state": "COMPLETED",
        "reason": "",
        "hparams": {},
        "seed": 0,
        "bracket": 0,
        "target": 8,
        "length": 8,
        "latest": 1.0,
        "best": 1.0,
        "best_length": 8,
        "num_restarts": 0,
        "num_slots": 0,
        "started_at": 100.0,
    }
    return wire.TrialView(**{**known, **changed})


def validated(number: int, time: float, which: int, length: int) -> wire.SearchEventView:
    event = {"kind": "validated", "trial": which, "length": length, "metric": 1.0}
    return wire.SearchEventView(number=number, time=time, event=event, operations=[])


def test_only_the_first_result_of_a_trial_counts_since_later_ones_may_have_waited() -> None:
    began = wire.SearchEventView(number=1, time=99.0, event={"kind": "began"}, operations=[])
    events = [began, validated(2, 104.0, 1, 8), validated(3, 900.0, 1, 32)]
    assert first_results([trial(1)], events) == [(8, 4.0)]


def test_trials_that_were_restarted_or_never_began_do_not_count() -> None:
    events = [validated(1, 104.0, 1, 8), validated(2, 104.0, 2, 8)]
    assert first_results([trial(1, num_restarts=1), trial(2, started_at=None)], events) == []
