"""The backend of each generation: all members choose it from their hellos, connect their devices, and try it once
before they rely on it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from everstep.engine.backend import Backend, BackendChoice, decide_backend
from everstep.engine.device_link import DeviceLink
from everstep.engine.group import Group
from everstep.engine.leadership import MemberHello
from everstep.engine.link_trial import try_link
from everstep.engine.step_work import StepWork
from everstep.errors import StateMismatch
from everstep.events import emit

log = logging.getLogger("everstep")


class BackendUse:
    """Of one worker."""

    def __init__(self, work: StepWork) -> None:
        self._work = work
        self._told: tuple[Backend, str] | None = None

    def choose(self, group: Group, hellos: Sequence[MemberHello]) -> BackendChoice:
        """All members choose the same; devices connect in the background."""
        choice = decide_backend([hello.backend for hello in hellos])
        if choice.backend is not Backend.GLOO and group.link is None:
            device, is_exact = self._work.sum.layout.device, self._work.settings.is_exact
            group.take_link(DeviceLink(group, choice.backend, device, is_exact=is_exact))
        self._tell(choice, group)
        return choice

    def try_out(self, choice: BackendChoice, group: Group, worker: str) -> None:
        """Try the link for members that have not summed from device to device before. If it fails, use gloo."""
        record = self._work.device_way
        assert group.link is not None
        problem = try_link(group.link, group, worker)
        record.is_tried = not problem
        if not problem:
            return
        group.link.abort(problem)
        group.take_link(None)
        if self._work.backend_wish == choice.backend.value:
            raise StateMismatch(
                f"backend={choice.backend.value!r} does not work: {problem}",
                hint='NCCL_DEBUG=INFO shows why; backend="auto" falls back to gloo',
                code="backend-does-not-serve",
            )
        record.refusal = problem
        self._tell(BackendChoice(backend=Backend.GLOO, reason=problem), group)

    def _tell(self, choice: BackendChoice, group: Group) -> None:
        emit("backend.chosen", generation=group.world.generation, backend=choice.backend.value, reason=choice.reason)
        is_on_host = self._work.sum.layout.is_on_host
        if choice.backend is Backend.GLOO and is_on_host and self._work.backend_wish != Backend.NCCL.value:
            return  # no news: gloo is the only backend for CPU tensors
        if (choice.backend, choice.reason) != self._told:
            self._told = (choice.backend, choice.reason)
            log.info("gradients travel over %s: %s", choice.backend.value, choice.reason)
