"""How a trial changes: by its search's operations, its results, and the ends of its assignments. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from everstep import wire
from everstep.coordinator.experiments.facts import DONE, STOPPING, Trial
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
    INVALID_HP: "the script says that its hyperparameters are invalid",
    USER_CANCELED: "killed",
    None: "the script ended well",
}


def operated(
    trials: Mapping[int, Trial], operations: Iterable[Operation], *, experiment: int, next_id: int, now: float
) -> dict[int, Trial]:
    """The trials that these operations change or create. `next_id`: of the first that is new."""
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
    """What follows from the end of an assignment. `is_over`: with `why`."""

    is_over: bool = False
    why: str | None = None
    counts: bool = False  # as a restart
    reason: str = ""


def decide_vacated(trial: Trial, end: AssignmentEnd, *, state: str, is_finished: bool, max_restarts: int) -> Vacated:
    """`state`: of the experiment. `is_finished`: the trial's job ended well."""
    if trial.ending in (INVALID_HP, USER_CANCELED):
        return Vacated(is_over=True, why=trial.ending, reason=ending_reason(trial))
    has_ended_well = is_finished or (end.exit_code == 0 and not end.is_lost and (trial.wish == wire.STOP))
    if has_ended_well or trial.ending == DONE:
        return Vacated(is_over=True, reason=trial.reason if trial.wish == wire.STOP else END_REASONS[None])
    if state in STOPPING:
        why = None if state == wire.STOPPING_COMPLETED else USER_CANCELED
        return Vacated(is_over=True, why=why, reason=f"the experiment is {state}")
    if end.is_lost or end.was_asked or end.exit_code == 0:
        return Vacated(reason=f"waits for a slot: {end.reason or 'left in good order'}")
    used = trial.num_restarts + 1
    if used > max_restarts:
        reason = f"{end.reason or f'exit code {end.exit_code}'}; all {max_restarts} restarts are used"
        return Vacated(is_over=True, why=ERRORED, reason=reason)
    return Vacated(
        counts=True, reason=f"restart {used} of {max_restarts}: {end.reason or f'exit code {end.exit_code}'}"
    )


def ending_reason(trial: Trial) -> str:
    """Of one that ends without a process."""
    return trial.reason if trial.wish == wire.STOP or trial.reason else END_REASONS[trial.ending or None]


def ending_why(trial: Trial) -> str | None:
    return trial.ending if trial.ending in (INVALID_HP, USER_CANCELED) else None


def decide_target(trial: Trial, *, state: str, seen: int, is_parking: bool, unit: str) -> wire.TrialTarget:
    """What the trial is to do next, after the target with number `seen`."""

    def answer(wish: str, reason: str, length: int | None = None) -> wire.TrialTarget:
        return wire.TrialTarget(number=trial.target_number, wish=wish, length=length, unit=unit, reason=reason)

    if trial.is_over or trial.wish == wire.STOP or trial.ending:
        return answer(wire.STOP, trial.reason, trial.target)
    if state in (wire.STOPPING_COMPLETED, wire.STOPPING_KILLED):
        return answer(wire.STOP, f"the experiment is {state}")
    if state != wire.ACTIVE:
        return answer(wire.PARK, f"the experiment is {state}")
    if is_parking:
        return answer(wire.PARK, "its slot is needed")
    if trial.target_number > seen:
        return answer(wire.TRAIN, trial.reason, trial.target)
    return answer(wire.WAIT, f"waits at {trial.length} {unit} for the search to decide", trial.target)
