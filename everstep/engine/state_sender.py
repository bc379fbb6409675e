"""The leader's side of a transfer: whether the state must be copied first, and what happens if it cannot be sent."""

from __future__ import annotations

from collections.abc import Callable

from everstep.engine.group import Group
from everstep.engine.parcel import Outgoing
from everstep.engine.step_work import StepWork
from everstep.engine.transfer import send_state

_CHANGES = "the script of {worker} changes its state within a step, and did so while the state of step {step} was sent"


class StateSender:
    """One worker's sender. `report_broken` closes a generation and says why; it can be called from any thread."""

    def __init__(self, work: StepWork, report_broken: Callable[[int, str], None]) -> None:
        self._work = work
        self._report_broken = report_broken
        self._sent: tuple[int, bytes] | None = None  # the step and the checksum of the last state, if it changed

    def send(self, group: Group, peer: int, worker: str, *, is_between_steps: bool) -> None:
        """Send the state in the background; only the receivers wait for it. If this fails, all workers regroup.

        Between two steps, the script may change its state at any time, so the state is copied."""
        work, generation = self._work, group.world.generation
        is_copied = is_between_steps or not work.steadiness.is_steady
        state = Outgoing(work.state(), worker, is_copied=is_copied)
        if self._sent is not None and self._sent[0] == work.step and self._sent[1] != state.checksum:
            state = Outgoing.refusal(_CHANGES.format(worker=worker, step=work.step), worker)

        def fail(reason: str, has_changed: bool) -> None:
            if has_changed:
                work.steadiness.note_change()
                self._sent = (work.step, state.checksum)
            self._report_broken(generation, f"{worker} could not send its state: {reason}")

        send_state(state, group, peer, fail)
