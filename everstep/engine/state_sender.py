"""The leader's side of a transfer: whether the state must be copied first, and what happens if it cannot be sent."""

from __future__ import annotations

import threading
from typing import Protocol

from everstep.engine.group import Group
from everstep.engine.parcel import Outgoing
from everstep.engine.state_routes import Route
from everstep.engine.step_work import StepWork
from everstep.engine.transfer import Inlets, StateChanged, send_state

_VERDICT_S = 1.0  # for an earlier sending to end: its group is broken, so that takes no time
_CHANGES = "the script of {worker} changes its weights within step {step}, and has changed them now"


class ReportBroken(Protocol):
    def __call__(self, generation: int, reason: str, *, must_probe: bool) -> None: ...


class StateSender:
    """Of one worker. `report_broken` closes a generation, from any thread."""

    def __init__(self, work: StepWork, report_broken: ReportBroken) -> None:
        self._work = work
        self._report_broken = report_broken
        self._changed: tuple[int, bytes] | None = None  # the step and the checksum of the last state that changed
        self._last: threading.Event | None = None  # set when the last sending is over

    def send(self, group: Group, route: Route, inlets: Inlets, worker: str, *, is_between_steps: bool) -> None:
        """Send the state in the background; only the receivers wait for it. If this fails, all workers regroup.

        Between two steps the script may change its state at any time, so it is copied."""
        work, generation, step = self._work, group.world.generation, self._work.step
        if self._last is not None:  # the generation may close before its thread has read that the state has changed
            self._last.wait(_VERDICT_S)
        is_copied = is_between_steps or not work.steadiness.is_steady
        state = Outgoing(work.state(), worker, is_copied=is_copied)
        is_known_changed = self._changed is not None and self._changed[0] == step and self._changed[1] != state.sum_up()
        if is_known_changed or not work.steadiness.is_intact:
            state = Outgoing.refusal(_CHANGES.format(worker=worker, step=step), worker)

        def fail(error: Exception) -> None:
            if isinstance(error, StateChanged):
                work.steadiness.note_change()
                self._changed = (step, state.sum_up())
            reason = f"{worker} could not send its state: {error}"
            self._report_broken(generation, reason, must_probe=isinstance(error, OSError))

        self._last = send_state(state, group, route, inlets, fail)
