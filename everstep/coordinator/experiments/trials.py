"""How a trial changes: by its search's operations, its results, and the ends of its assignments. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from everstep import wire
from everstep.coordinator.experiments.facts import DONE, STOPPING, Trial
from everstep.coordinator.experiments.log_policies import why_no_restart
from everstep.coordinator.experiments.seam import AssignmentEnd
from everstep.search.events import (
    ERRORED,
    INVALID_HP,
    USER_CANCELED,
    CreateTrial,
    Operation,
    StopTrial,
    TrainTo,
    finite,
)

_ENDS = {None: wire.COMPLETED, ERRORED: wire.ERROR, USER_CANCELED: wire.CANCELED, INVALID_HP: wire.COMPLETED}
END_REASONS = {
    INVALID_HP: "the script rejected its hyperparameters",
    USER_CANCELED: "killed",
    ERRORED: "it failed",
    None: "the script finished",
}
BAD_ENDS = (INVALID_HP, USER_CANCELED, ERRORED)  # nothing that the trial still does counts
WAITS = "waits for a slot: "  # before what happened to its last process
_ASKED = 128 + signal.SIGTERM  # the exit code of a process that has left because it was asked
_NO_RESULT = "the script finished without reporting the searcher's metric"


def operated(
    trials: Mapping[int, Trial], operations: Iterable[Operation], *, experiment: int, next_id: int, now: float
) -> dict[int, Trial]:
    """The trials that these operations change or create. `next_id`: the ID of the first new one."""
    changed: dict[int, Trial] = {}
    for each in operations:
        if isinstance(each, CreateTrial):
            changed[each.trial] = Trial(
                experiment=experiment,
                number=each.trial,
                trial_id=next_id,
                bracket=each.bracket,
                hparams=each.hparams,
                seed=each.seed,
                created_at=now,
                reason=each.reason,
            )
            next_id += 1
        elif isinstance(each, TrainTo | StopTrial):
            trial = changed.get(each.trial) or trials[each.trial]
            if not trial.is_over:
                changed[each.trial] = _told(trial, each)
    return changed


def _told(trial: Trial, operation: TrainTo | StopTrial) -> Trial:
    number, reason = trial.target_number + 1, operation.reason
    if isinstance(operation, StopTrial):
        return replace(trial, wish=wire.STOP, target_number=number, reason=reason)
    return replace(trial, wish=wire.TRAIN, target_number=number, target=operation.length, reason=reason)


def validated(trial: Trial, result: wire.TrialResult, *, smaller_is_better: bool) -> Trial:
    metric, best = finite(float(result.metric)), trial.best
    if metric is not None and (best is None or (metric < best if smaller_is_better else metric > best)):
        trial = replace(trial, best=metric, best_length=result.length)
    if result.length >= trial.length:
        trial = replace(trial, length=result.length, latest=result.metric, batches=max(trial.batches, result.batches))
    return trial


def ended(trial: Trial, why: str | None, reason: str, now: float) -> Trial:
    return replace(trial, state=_ENDS[why], reason=reason, ended_at=now)


@dataclass(frozen=True, kw_only=True, slots=True)
class Vacated:
    """What follows from the end of an assignment. `is_over`: the trial is over because of `why`, once its other
    assignments have ended too."""

    is_over: bool = False
    why: str | None = None
    counts: bool = False  # as a restart
    reason: str = ""


def decide_vacated(
    trial: Trial,
    assignment: int,
    end: AssignmentEnd,
    *,
    state: str,
    is_finished: bool,
    max_restarts: int,
    is_printing: bool = False,
) -> Vacated:
    """`state`: of the experiment. `is_finished`: the trial's job ended well. `is_printing`: its results are what the
    script prints. Its node delivers the last of them after the job's end, and exits with 0 only then.

    Assignments that ran together fail together: this counts as one restart."""
    if trial.ending in BAD_ENDS:
        return Vacated(is_over=True, why=trial.ending, reason=ending_reason(trial))
    is_finished = is_finished and not (is_printing and (end.is_lost or end.exit_code != 0))
    has_ended_well = is_finished or (end.exit_code == 0 and not end.is_lost and (trial.wish == wire.STOP))
    if has_ended_well or trial.ending == DONE:
        return Vacated(is_over=True, reason=_good_end(trial))
    if state in STOPPING:
        why = None if state == wire.STOPPING_COMPLETED else USER_CANCELED
        return Vacated(is_over=True, why=why, reason=f"the experiment is {state}")
    if end.is_lost or end.was_asked or end.exit_code == 0:
        if trial.must_end:
            return Vacated(is_over=True, reason=ending_reason(trial))
        return Vacated(reason=f"{WAITS}{_why_left(end)}")
    if assignment <= trial.vacated:
        return Vacated(reason=trial.reason)
    used, why_not = trial.num_restarts + 1, why_no_restart(trial)
    if used > max_restarts or why_not:
        reason = f"{end.reason or f'exit code {end.exit_code}'}; {why_not or _used_up(max_restarts)}"
        return Vacated(is_over=True, why=ERRORED, reason=reason)
    return Vacated(
        counts=True, reason=f"restart {used} of {max_restarts}: {end.reason or f'exit code {end.exit_code}'}"
    )


def _why_left(end: AssignmentEnd) -> str:
    if end.was_asked and not end.is_lost and end.exit_code in (0, _ASKED):
        return "it left its slot when asked"
    return end.reason or "its process exited cleanly"


def _used_up(max_restarts: int) -> str:
    if max_restarts == 0:
        return "no restart is allowed"
    return f"all {max_restarts} restarts are used" if max_restarts > 1 else "its only restart is used"


def _good_end(trial: Trial) -> str:
    if trial.wish == wire.STOP:
        return trial.reason
    if trial.latest is None:
        return _NO_RESULT
    is_short = trial.target is not None and trial.length < trial.target
    return f"the script finished at {trial.length} of {trial.target}" if is_short else "the script finished"


def ending_reason(trial: Trial) -> str:
    """The reason of a trial that ends without a process."""
    return trial.reason if trial.wish == wire.STOP or trial.reason else END_REASONS[trial.ending or None]


def ending_why(trial: Trial) -> str | None:
    return trial.ending if trial.ending in BAD_ENDS else None


def decide_target(trial: Trial, *, state: str, seen: int, is_parking: bool, unit: str) -> wire.TrialTarget:
    """What the trial must do next, after the target with number `seen`."""

    def answer(wish: str, reason: str, length: int | None = None) -> wire.TrialTarget:
        return wire.TrialTarget(number=trial.target_number, wish=wish, length=length, unit=unit, reason=reason)

    if trial.is_over or trial.wish == wire.STOP or trial.ending:
        return answer(wire.STOP, trial.reason, trial.target)
    if state in (wire.STOPPING_COMPLETED, wire.STOPPING_KILLED):
        return answer(wire.STOP, f"the experiment is {state}")
    if state != wire.ACTIVE:
        return answer(wire.PARK, f"the experiment is {state}")
    if is_parking:
        return answer(wire.PARK, "another trial needs its slot")
    if trial.target_number > seen:
        return answer(wire.TRAIN, trial.reason, trial.target)
    return answer(wire.WAIT, f"waits at {trial.length} {unit} for the search to decide", trial.target)
