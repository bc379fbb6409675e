"""The band of a job's workers while the coordinator runs: which mark comes next, at which step, and the job's past."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from everstep.coordinator.roster import marks
from everstep.coordinator.roster.facts import Roster, Sign, has_same_facts
from everstep.coordinator.roster.summary import PastFacts, committed_step, summary_of
from everstep.coordinator.signs import WorkerSigns
from everstep.wire import JobSummary, Mark


class JobBand:
    def __init__(self, last: int = 0, past: PastFacts | None = None) -> None:
        """`last`: the number of the latest mark that was kept."""
        self._last = last
        self.past = past or PastFacts()
        self._seen: tuple[Roster | None, str, int, int] = (None, "", 0, 0)
        self._summary: JobSummary | None = None
        self._told: dict[str, int] = {}  # worker → the step with which it came or wants to go

    def hear(self, worker: str, step: int) -> None:
        """A worker stands ready, or wants to leave, with this many steps committed."""
        self._told[worker] = step

    def begin(self) -> list[Mark]:
        """The first mark."""
        return [marks.created(marks.Moment(number=self._last + 1, time=time.time()))]

    def follow(self, before: Roster, after: Roster, signs: Mapping[str, Sign]) -> list[Mark]:
        """The marks that this change leaves."""
        if has_same_facts(before, after):
            return []
        formed_step = max((self._told.get(name, 0) for name in after.generation.ranks), default=0)
        step = max(committed_step(replace(after, generation=before.generation), signs), self._told_in(before))
        moment = marks.Moment(number=self._last + 1, time=time.time(), step=step, formed_step=formed_step)
        return marks.marks_between(before, after, moment)

    def keep(self, found: Sequence[Mark]) -> None:
        """They are in the store."""
        if not found:
            return
        self._last = found[-1].number
        deaths = sum(each.kind == marks.DIED for each in found)
        past = self.past
        self.past = PastFacts(
            created_at=past.created_at or (found[0].time if found[0].kind == marks.CREATED else 0.0),
            ended_at=found[-1].time if found[-1].kind in (marks.FINISHED, marks.STOPPED) else past.ended_at,
            num_deaths=past.num_deaths + deaths,
            step=found[-1].step,
        )

    def summary(self, roster: Roster, signs: WorkerSigns, reason: str) -> JobSummary:
        """Made again only if something has changed."""
        seen = (roster, reason, signs.num_steps, self._last)
        if self._summary is None or self._seen[0] is not roster or self._seen[1:] != seen[1:]:
            self._seen, self._summary = seen, summary_of(roster, signs.all, reason, self.past)
        return self._summary

    def _told_in(self, roster: Roster) -> int:
        """A member that has committed no step since then has reported none."""
        return max((self._told.get(name, 0) for name in roster.generation.ranks), default=0)
