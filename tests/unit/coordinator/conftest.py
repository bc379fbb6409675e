"""A job on a stage: the pure parts of the coordinator with a clock that is moved by hand. No process, no socket."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.coordinator.roster import changes
from everstep.coordinator.roster.advance import advance, examine
from everstep.coordinator.roster.facts import Generation, Roster, Sign
from everstep.wire import (
    OUTSIDE,
    Announce,
    Arrive,
    Broken,
    Leave,
    Policy,
    ReserveWorker,
    Settled,
    WorkerExit,
)


class Stage:
    """Each act is followed by the decisions that it makes due, as in the service."""

    def __init__(self, **policy: object) -> None:
        self.now = 1000.0
        self.roster = Roster(job="play", name="", policy=Policy(**policy))  # type: ignore[arg-type]
        self.signs: dict[str, Sign] = {}
        self.reason = ""
        self.next_look: float | None = None

    @property
    def generation(self) -> Generation:
        return self.roster.generation

    @property
    def members(self) -> list[str]:
        return [member.worker for member in self.generation.members]

    def add(self, num_workers: int, agent: str = "a0") -> list[str]:
        names = []
        for _ in range(num_workers):
            name = self.reserve(agent=agent)
            self.announce(name, f"{name}-1")
            names.append(name)
        return names

    def reserve(self, *, replaces: str = "", agent: str = "a0") -> str:
        request = ReserveWorker(agent=agent, request=str(len(self.roster.workers)), replaces=replaces)
        self.roster, name = changes.reserve(self.roster, request)
        return name

    def announce(self, name: str, incarnation: str) -> None:
        message = Announce(incarnation=incarnation, pid=1, address="127.0.0.1", store_port=2, probe_port=3)
        self.signs[name] = Sign(alive_at=self.now, told_at=self.now)
        self._act(changes.announce(self.roster, name, message, self.now))

    def arrive(
        self,
        *names: str,
        step: int = 0,
        settled: int | None = None,
        unreachable: tuple[str, ...] = (),
        max_workers: int | None = None,
    ) -> None:
        for name in names:
            worker = self.roster.workers[name]
            message = Arrive(
                incarnation=worker.incarnation,
                generation=self.generation.number if self.roster.is_member(name) else 0,
                settled=worker.settled if settled is None else settled,
                step=step,
                max_workers=max_workers,
                unreachable=list(unreachable),
            )
            self.hear(name)
            self._act(changes.arrive(self.roster, name, message, self.now))

    def settle(self, *names: str, step: int = 0) -> None:
        for name in names:
            message = Settled(incarnation=self._incarnation(name), generation=self.generation.number, step=step)
            self._act(changes.settled(self.roster, name, message))

    def leave(self, *names: str, step: int = 0, is_asked: bool = False) -> None:
        for name in names:
            number = self.generation.number if self.roster.is_member(name) else 0
            message = Leave(
                incarnation=self._incarnation(name), generation=number, step=step, reason="done", is_asked=is_asked
            )
            self.hear(name)
            self._act(changes.leave(self.roster, name, message))

    def break_(
        self, name: str, reason: str = "a socket broke", *, must_probe: bool = False, is_fatal: bool = False
    ) -> None:
        message = Broken(
            incarnation=self._incarnation(name),
            generation=self.generation.number,
            reason=reason,
            must_probe=must_probe,
            is_fatal=is_fatal,
        )
        self._act(changes.broken(self.roster, name, message, self.now))

    def exit(self, *names: str, code: int = -9, step: int = 0, micro_batch: int = -1, was_asked: bool = False) -> None:
        for name in names:
            end = WorkerExit(exit_code=code, step=step, micro_batch=micro_batch, was_asked=was_asked)
            self._act(changes.exited(self.roster, name, end, self.now))

    def hear(self, *names: str, phase: str = OUTSIDE, phase_s: float = 0.0, step: int = 1, **longest: float) -> None:
        for name in names:
            self.signs[name] = Sign(
                alive_at=self.now, told_at=self.now, step=step, phase=phase, phase_since=self.now - phase_s, **longest
            )

    def after(self, seconds: float, *alive: str) -> None:
        """Time passes; those who are named give signs of life as they last did, the others are silent."""
        self.now += seconds
        for name in alive:
            self.signs[name] = replace(self.signs[name], alive_at=self.now, told_at=self.now)
        roster, _ = examine(self.roster, self.signs, {}, self.now)
        self._act(roster)

    def status(self, name: str) -> str:
        return self.roster.workers[name].status

    def _incarnation(self, name: str) -> str:
        return self.roster.workers[name].incarnation

    def _act(self, roster: Roster) -> None:
        self.roster, self.reason, self.next_look = advance(roster, self.signs, self.now)


@pytest.fixture
def stage() -> type[Stage]:
    return Stage
