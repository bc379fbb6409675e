"""What an agent decides: whether to replace a worker that ended, how the whole went, and which workers are late.

Pure: facts in, a decision with its reason out."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from everstep.process import Exit
from everstep.wire import JobView

NO_WORKER = "no-worker-left"  # the code of a verdict
TOLD_AFTER_S = 5.0  # ends are usually milliseconds apart
_GONE = ("left", "sent", "dead")
_MOST = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerEnd:
    """One worker's end, as its agent saw it."""

    worker: str
    exit: Exit
    step: int = 0
    micro_batch: int = -1
    attempt: int = 0
    was_asked: bool = False  # by its agent: not its own failure
    has_raised: bool = False  # its script died of its own exception: a mistake, it seems, and not a loss
    is_shared: bool = False  # it was doing work that another does if it dies
    is_replaceable: bool = False  # a restart was left for it, needed or not

    def __str__(self) -> str:
        place = f" in micro-batch {self.micro_batch}" if self.micro_batch >= 0 else ""
        knows_steps = self.step or self.micro_batch >= 0
        return f"{self.exit}{place}" + (f" after step {self.step}" if knows_steps else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Replacement:
    is_replaced: bool
    code: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    exit_code: int
    code: str
    reason: str
    first_failure: WorkerEnd | None = None  # the one to look at
    num_survived: int = 0  # deaths
    num_restarts: int = 0  # of all workers together
    was_interrupted: bool = False  # the job may continue elsewhere
    unfinished: tuple[str, ...] = ()  # workers that were killed after the last step

    @property
    def is_good(self) -> bool:
        return self.exit_code == 0


def decide_replacement(ended: Exit, *, is_ending: bool, is_regrouping: bool, num_left: int = 1) -> Replacement:
    """Whether to ask for a replacement; the reason is the end of a sentence. The coordinator counts them."""
    if ended.is_good or is_ending:
        return Replacement(is_replaced=False, code="not-needed")
    if not is_regrouping:
        reason = "; the others cannot continue without it" if num_left else ""
        return Replacement(is_replaced=False, code="not-regrouping", reason=reason)
    return Replacement(is_replaced=True, code="replaced", reason="; the others continue" if num_left else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEnd:
    """What the coordinator says of the job."""

    is_finished: bool = False
    stop_reason: str = ""
    outlived: frozenset[str] = frozenset()  # workers that went before the job was done with them …
    chiefs: frozenset[str] = frozenset()  # … of these, those that were rank 0
    released: frozenset[str] = frozenset()  # workers whose scripts came to their end

    @classmethod
    def of(cls, view: JobView, gave_up: str) -> JobEnd:
        """`gave_up`: why this node did, if so."""
        outlived = [each for each in view.workers if each.status in ("dead", "lost")]
        return cls(
            is_finished=view.is_finished,  # and a worker that comes after its end is refused
            stop_reason="" if view.is_finished else view.reason if view.is_stopped else gave_up,
            outlived=frozenset(each.worker for each in outlived),
            chiefs=frozenset(each.worker for each in outlived if each.died_as == 0),
            released=frozenset(each.worker for each in view.workers if each.status == "left"),
        )


def decide_verdict(ends: Sequence[WorkerEnd], job: JobEnd, *, signal_number: int | None) -> Verdict:
    """`ends` in order of time, which only decides which worker to name: ends that are close together are seen in any
    order."""
    if signal_number is not None:
        reason = f"stopped by {signal.Signals(signal_number).name}"
        return Verdict(exit_code=128 + signal_number, code="interrupted", reason=reason, was_interrupted=True)
    if job.stop_reason:
        failure = _first_failure(ends, job.stop_reason)
        return Verdict(exit_code=1, code="job-stopped", reason=job.stop_reason, first_failure=failure)
    num_restarts = max((end.attempt for end in ends), default=0)
    ends = [end for end in ends if end.attempt == num_restarts and not (job.is_finished and _is_late(end))]
    good, bad = [end for end in ends if end.exit.is_good], [end for end in ends if not end.exit.is_good]
    if not (good or (job.is_finished and (job.released or not any(end.step for end in bad)))):
        return Verdict(exit_code=1, code=NO_WORKER, reason="no worker is left", first_failure=_first_failure(ends))
    failed = [end for end in bad if not _is_survived(end, good, job)]
    if failed:
        code, reason = _why_failed(failed[0], good, job)
        return Verdict(exit_code=1, code=code, reason=reason, first_failure=failed[0])
    code, reason = "left", "left in good order, the job continues elsewhere"
    if job.is_finished:
        code, reason = "finished", "finished"
    last_step = _last_step(good)
    unfinished = tuple(sorted(end.worker for end in bad if end.step >= last_step)) if job.is_finished else ()
    return Verdict(
        exit_code=0,
        code=code,
        reason=reason,
        num_survived=len(bad),
        num_restarts=num_restarts,
        unfinished=unfinished,
    )


def _why_failed(end: WorkerEnd, good: Sequence[WorkerEnd], job: JobEnd) -> tuple[str, str]:
    """Code and reason."""
    if _is_mistake(end) and (not good or end.step < _last_step(good)):
        others = "finished" if job.is_finished else "continued"
        what = f"{end.worker} died of an exception in its script, with no restart left"
        return "script-raised", f"{what}; the others {others} without it"
    if not job.is_finished:
        return NO_WORKER, "no worker is left"
    if not end.exit.signal:
        return "failed-after-last-step", f"{end.worker} failed after the last step"
    what = f"{end.worker} was killed as rank 0 after the last step"
    return "rank-0-killed-after-last-step", f"{what}: files that it writes then may be missing"


def _is_late(end: WorkerEnd) -> bool:
    """It came too late to do a step of a finished job and was turned away: neither a failure nor a death."""
    is_sent = end.was_asked or not (end.exit.signal or end.has_raised)
    return not end.exit.is_good and end.step == 0 and is_sent


def _is_survived(end: WorkerEnd, good: Sequence[WorkerEnd], job: JobEnd) -> bool:
    """Whether the others did what was left to do. They did if they took steps after its last one; but an exception of
    the script that no restart was allowed for is never ignored. No other worker does what a script does after its last
    step, such as saving the model: an error there is the job's. One that was killed there is survived if its script had
    come to its end, or if others did the same: what all do, or what a trial's fit shares out."""
    if _is_mistake(end):
        return False
    if end.step < _last_step(good):
        return True
    has_ended = job.is_finished and end.worker in job.released
    is_done_by_others = end.worker in job.outlived and (end.is_shared or end.worker not in job.chiefs)
    return bool(end.exit.signal) and (has_ended or is_done_by_others)


def _is_mistake(end: WorkerEnd) -> bool:
    return end.has_raised and not end.is_replaceable and not end.was_asked


def _last_step(good: Sequence[WorkerEnd]) -> int:
    return max((end.step for end in good), default=1)


def _first_failure(ends: Sequence[WorkerEnd], stop_reason: str = "") -> WorkerEnd | None:
    """The first of those that ended the job: a worker that died steps before the end was survived. Ends are seen in
    any order, so the one that the reason names is it, or one whose own script failed; others may only have followed."""
    last_attempt = max((end.attempt for end in ends), default=0)
    last_step = max((end.step for end in ends), default=0)
    failures = [
        end
        for end in ends
        if not end.exit.is_good and not end.was_asked and end.step >= last_step - 1 and end.attempt == last_attempt
    ]
    named = [end for end in failures if stop_reason.startswith(f"{end.worker}: ")]
    raised = [end for end in failures if end.has_raised]
    return next(iter([*named, *raised, *failures]), None)


def whom_we_wait_for(
    view: JobView, *, agent: str, running: Mapping[str, int], is_regrouping: bool, since_s: float
) -> str:
    """What a node says that only waits for workers to end: which of them hang, so that the user knows where to look.
    Workers that regroup may leave one by one, hours before the others: these are waited for only when the job is over.
    `running`: workers of this node and their process numbers; `since_s` ago the last thing ended here, worker or
    job. "" if no worker is waited for, or not for long."""
    is_over = view.is_finished or view.is_stopped
    if since_s < TOLD_AFTER_S or (is_regrouping and not is_over):
        return ""
    late = [f"{name} (pid {pid})" for name, pid in running.items()]
    if not is_over:
        others = {node.agent for node in view.nodes if node.is_present} - {agent}
        unended = [each for each in view.workers if each.agent in others and each.status not in _GONE]
        late += [f"{each.worker} on {each.agent}" for each in unended]
    return f"waiting for {_listed(late)} to end" if late else ""


def _listed(names: Collection[str]) -> str:
    shown = list(names)[:_MOST]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
