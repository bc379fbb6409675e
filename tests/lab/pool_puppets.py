"""The pool at the coordinator for stories: agents that are nothing but their reports, and trials that want slots."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence

from everstep import wire
from everstep.coordinator.experiments.seam import AssignmentEnd, Candidate, TrialPace
from everstep.coordinator.pool.pool import Pool
from everstep.coordinator.store.store import Store

PATIENCE_S = 60.0

Perform = Callable[..., None]


class WantingTrials:
    """Where trials come from: a list that stories change."""

    def __init__(self, num_trials: int) -> None:
        self.wanting = {number: candidate(number) for number in range(1, num_trials + 1)}
        self.parking: list[int] = []
        self.placed_as: list[tuple[int, int]] = []
        self.ends: list[tuple[int, int, AssignmentEnd]] = []
        self.others: list[Sequence[int]] = []  # at each end
        self.shrinking: list[int] = []
        self.refused: Container[int] = ()  # assignments that the trial no longer wants
        self.dead: list[tuple[int, int]] = []

    def candidates(self) -> list[Candidate]:
        return list(self.wanting.values())

    def order(self, candidate: Candidate) -> wire.AssignmentOrder:
        return wire.AssignmentOrder(
            number=0,
            slot=0,
            experiment=candidate.experiment,
            trial=candidate.trial,
            trial_id=candidate.trial_id,
            job=candidate.job,
            hparams={"lr": candidate.trial / 10},
            seed=candidate.trial,
            order={"script": "train.py"},
            config={},
            policy={},
        )

    def note_parking(self, experiment: int, trial: int) -> None:
        self.parking.append(trial)

    def note_shrinking(self, experiment: int, trial: int) -> None:
        self.shrinking.append(trial)

    def progress(self, experiment: int, trial: int) -> TrialPace | None:
        return None

    def refuse(self, experiment: int, reason: str) -> None: ...

    def note_kinds(self, kinds: Mapping[str, frozenset[str]]) -> None:
        self.kinds = kinds

    async def placed(self, candidate: Candidate, assignment: int, kind: str, *, is_first: bool) -> bool:
        self.placed_as.append((candidate.trial, assignment))
        return assignment not in self.refused

    async def vacated(
        self, experiment: int, trial: int, assignment: int, end: AssignmentEnd, others: Sequence[int]
    ) -> None:
        self.ends.append((trial, assignment, end))
        self.others.append(others)

    async def buried(self, experiment: int, trial: int, assignment: int) -> None:
        self.dead.append((trial, assignment))


def candidate(trial: int, experiment: int = 1, *, least: int = 1, most: int = 1) -> Candidate:
    facts = {"experiment": experiment, "rank": (trial,), "is_waiting": False, "waiting_since": 0.0}
    return Candidate(
        trial=trial,
        trial_id=trial,
        job=f"e1-t{trial}",
        min_slots=least,
        max_slots=most,
        **facts,  # type: ignore[arg-type]
    )


class PuppetAgent:
    """Remembers what a real one would remember."""

    def __init__(
        self, pool: Pool, name: str = "a", *, num_slots: int = 1, incarnation: str = "first", of: str = "default"
    ) -> None:
        self.pool, self.name, self.num_slots, self.incarnation, self.of = pool, name, num_slots, incarnation, of
        self.states: dict[int, wire.AssignmentState] = {}
        self.seen = 0

    async def report(self, wait_s: float = 0.0) -> wire.PoolOrders:
        message = wire.PoolReport(
            incarnation=self.incarnation,
            num_slots=self.num_slots,
            kind="test",
            assignments=list(self.states.values()),
            seen=self.seen,
            wait_s=wait_s,
        )
        orders = await self.pool.report(self.of, self.name, message)
        self.seen = orders.number
        for number in orders.confirmed:
            self.states.pop(number, None)
        return orders

    async def until(self, holds: Callable[[wire.PoolOrders], bool]) -> wire.PoolOrders:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            orders = await self.report(wait_s=0.2)
            if holds(orders):
                return orders
        raise AssertionError(f"the orders never came; the last were {orders}")

    async def begin(self, number: int = 1) -> list[wire.AssignmentOrder]:
        """Take so many assignments, and run them."""
        orders = await self.until(lambda orders: len(orders.run) == number)
        for each in orders.run:
            self.run(each.number)
        return orders.run

    def run(self, number: int) -> None:
        self.states[number] = wire.AssignmentState(number=number, state="running")

    def end(self, number: int, exit_code: int = 0, *, was_asked: bool = False) -> None:
        self.states[number] = wire.AssignmentState(
            number=number, state="ended", exit_code=exit_code, was_asked=was_asked, reason="it ended"
        )


async def until(look: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def let_others_run() -> None:
    """A call that need not wait for anything is over by then."""
    for _ in range(20):
        await asyncio.sleep(0)


class Stage:
    """A pool on a store that survives it. Puppets report only when a story tells them to, so a busy machine must not
    make them silent."""

    def __init__(self, url: str, num_trials: int = 1, *, lease_s: float = 2 * PATIENCE_S) -> None:
        self._url, self._lease_s, self._skipped_s = url, lease_s, 0.0
        self.trials = WantingTrials(num_trials)

    async def __aenter__(self) -> Stage:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self.store = Store(self._url)
        self.pool = Pool(self.store, now=self._now, lease_s=self._lease_s)
        await self.pool.load()
        self.pool.open(self.trials)

    async def stop(self) -> None:
        await self.pool.close()
        self.store.close()

    def _now(self) -> float:
        return time.monotonic() + self._skipped_s

    def skip_a_lease(self) -> None:
        """All agents were silent for so long, but for one that reports before anything else happens."""
        self._skipped_s += self._lease_s

    async def restart(self) -> None:
        """All that is in memory is gone."""
        await self.stop()
        await self.start()


def performer(store_url: str) -> Perform:
    """Perform a story with a stage of its own; what earlier stories left in the store is not live any more."""

    def perform(story: Callable[[Stage], Awaitable[None]], num_trials: int = 1, **settings: float) -> None:
        async def whole() -> None:
            async with Stage(store_url, num_trials, **settings) as stage:
                await story(stage)
                stage.trials.wanting.clear()
                for name in ("a", "b"):
                    agent = PuppetAgent(stage.pool, name, incarnation="last")
                    await agent.report()
                    await stage.pool.leave("default", name, wire.AgentLeave(incarnation="last", reason="done"))
                await until(lambda: stage.pool._book.is_stored and not (stage.pool._book.kept or stage.pool._dead))

        asyncio.run(asyncio.wait_for(whole(), 2 * PATIENCE_S))

    return perform
