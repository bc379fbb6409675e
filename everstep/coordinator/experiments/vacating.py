"""What follows for a trial when one of its assignments has ended. Hold the experiment's lock.

If other assignments are left, the trial has only shrunk. But if it has failed for good, they are killed, and the trial
ends with the last of them. Repeating an end changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from everstep import wire
from everstep.coordinator.experiments.facts import STOPPING, Trial
from everstep.coordinator.experiments.live import LiveExperiment
from everstep.coordinator.experiments.seam import AssignmentEnd
from everstep.coordinator.experiments.trials import BAD_ENDS, Vacated, decide_vacated
from everstep.search.events import ERRORED

if TYPE_CHECKING:
    from everstep.coordinator.experiments.experiments import Experiments


async def vacate(
    experiments: Experiments,
    live: LiveExperiment,
    trial: Trial,
    assignment: int,
    end: AssignmentEnd,
    others: Sequence[int],
) -> None:
    """Settle the end of an assignment. `others`: assignments of the trial that have not ended."""
    decided = decide_vacated(
        trial,
        assignment,
        end,
        state=live.facts.state,
        is_finished=await experiments.jobs.is_finished(trial),
        max_restarts=live.facts.spec.max_restarts,
        is_printing=bool(live.facts.spec.config.get("metric_line")),
    )
    if not end.is_lost:
        await experiments.jobs.bury(trial, assignment, end.reason or "its node has ended")
    if others:
        await _shrink(experiments, live, trial, decided, max(assignment, *others))
        return
    live.parking.discard(trial.number)
    if decided.is_over:
        await experiments.end_trial(live, trial, decided.why, decided.reason)
    else:
        await _note(experiments, live, trial, decided, assignment)


async def _shrink(experiments: Experiments, live: LiveExperiment, trial: Trial, decided: Vacated, newest: int) -> None:
    if decided.why == ERRORED and not trial.ending:
        await experiments.commit(live, changed=[replace(trial, ending=ERRORED, reason=decided.reason)])
    elif decided.counts:
        await _note(experiments, live, trial, decided, newest)
    if decided.why in BAD_ENDS and live.facts.state not in STOPPING:
        experiments.release(live, trial, wire.KILL, decided.reason)


async def _note(experiments: Experiments, live: LiveExperiment, trial: Trial, decided: Vacated, newest: int) -> None:
    after = replace(trial, reason=decided.reason, num_restarts=trial.num_restarts + decided.counts)
    if decided.counts:
        after = replace(after, vacated=newest)
    if after != trial:
        await experiments.commit(live, changed=[after])
