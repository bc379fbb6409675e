"""The sentence of each trial: what it does now, and what happened to it before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep import wire
from everstep.coordinator.experiments.facts import Trial
from everstep.coordinator.experiments.seam import AssignmentEnd, NoSlots
from everstep.coordinator.experiments.trials import decide_vacated
from everstep.coordinator.experiments.views import trial_view

FRESH = Trial(experiment=1, number=2, trial_id=7, bracket=0, hparams={}, seed=0, created_at=0.0, reason="trial 2 of 6")
ASKED = AssignmentEnd(exit_code=143, was_asked=True, is_lost=False, reason="stopped by SIGTERM")
LOST = AssignmentEnd(exit_code=0, was_asked=False, is_lost=True, reason="n1 was silent for 10 s")


class Slots(NoSlots):
    """Holds this many slots for every trial, or says this about the queue."""

    def __init__(self, num_slots: int = 0, waits: str = "") -> None:
        self._num_slots, self._waits = num_slots, waits

    def holds(self, experiment: int, trial: int) -> int:
        return self._num_slots

    def why_queued(self, experiment: int, trial: int) -> str:
        return self._waits


def left(end: AssignmentEnd) -> Trial:
    vacated = decide_vacated(FRESH, 3, end, state=wire.ACTIVE, is_finished=False, max_restarts=5)
    return replace(FRESH, started_at=1.0, reason=vacated.reason)


@pytest.mark.parametrize(
    ("trial", "slots", "state", "reason"),
    [
        (FRESH, Slots(1), wire.ACTIVE, "trial 2 of 6"),
        (FRESH, Slots(waits="needs 1 slot; 0 are free"), wire.ACTIVE, "needs 1 slot; 0 are free"),
        (FRESH, Slots(), wire.PAUSED, "its experiment is paused"),
        (left(ASKED), Slots(), wire.PAUSED, "its experiment is paused; before: it left its slot when asked"),
        (left(ASKED), Slots(2), wire.ACTIVE, "continues; before: it left its slot when asked"),
        (left(LOST), Slots(1), wire.ACTIVE, "continues; before: n1 was silent for 10 s"),
        (
            left(LOST),
            Slots(waits="needs 1 slot; 0 are free"),
            wire.ACTIVE,
            "needs 1 slot; 0 are free; before: n1 was silent for 10 s",
        ),
    ],
)
def test_a_trial_says_what_it_does_now_and_what_happened_before(
    trial: Trial, slots: Slots, state: str, reason: str
) -> None:
    assert trial_view(trial, slots, state).reason == reason
