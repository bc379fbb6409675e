"""Deal micro-batches by speed, and name slow workers: measure, tell the others, decide at each commit.

Each generation begins with equal shares, because a newcomer does not know the speeds that the others know. A worker
keeps its own measurements, so the first steps of a generation are enough to deal again."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from everstep.engine.dealing import RECOVERED, SLOW, decide_deal, equal_shares, slowness
from everstep.engine.pace import WINDOW, MicroBatchPace
from everstep.engine.pulse import PulseDecision
from everstep.engine.world import World
from everstep.events import emit

log = logging.getLogger("everstep")

SURE_AFTER = 5  # consecutive steps before a worker is called slow, or as quick as the others


class Balance:
    def __init__(self) -> None:
        self.pace = MicroBatchPace()
        self.shares: tuple[int, ...] = ()  # by rank
        self.num_deals = 0  # of this generation
        self._workers: Sequence[str] = ()  # by rank
        self._can_deal = self._is_exact = False
        self._num_steps = 0  # since the shares changed
        self._stragglers = Stragglers()

    def begin_generation(
        self, workers: Sequence[str], num_micro_batches: int, *, can_deal: bool, is_exact: bool
    ) -> None:
        self.pace.forget_step()
        self.shares, self.num_deals = equal_shares(num_micro_batches, len(workers)), 0
        self._workers, self._can_deal, self._is_exact = workers, can_deal, is_exact
        self._num_steps = WINDOW  # speeds from earlier generations may be used at once

    def committed(self, decision: PulseDecision, world: World, step: int) -> None:
        self.pace.committed()
        if world.size == 1:
            return
        self._num_steps += 1
        if self._can_deal and self._num_steps >= WINDOW:  # all have measured since the last change
            self._deal(decision, world, step)
        named = self._stragglers.hear(dict(zip(self._workers, decision.micro_batch_s, strict=True)))
        if world.rank == 0:
            for worker, factor in named:
                _name(worker, factor, world, step)

    def _deal(self, decision: PulseDecision, world: World, step: int) -> None:
        deal = decide_deal(self.shares, decision.micro_batch_s, decision.sum_s, is_exact=self._is_exact)
        if deal is None:
            return
        self.shares, self._num_steps = deal.shares, 0
        self.num_deals += 1
        if world.rank == 0:
            shares = ", ".join(f"{name} {share}" for name, share in zip(self._workers, deal.shares, strict=True))
            reason = f"a step should take {deal.step_s:.3g} s instead of {deal.step_s_before:.3g} s"
            log.info("micro-batches dealt by speed: %s; %s", shares, reason)
            emit("plan.dealt", step=step, generation=world.generation, shares=list(deal.shares), reason=reason)


class Stragglers:
    """Which workers are slow. A worker becomes slow, or recovers, only after several consecutive steps."""

    def __init__(self) -> None:
        self._slow: set[str] = set()
        self._num_steps: dict[str, int] = {}  # consecutive steps that contradict `_slow`

    def hear(self, micro_batch_s: dict[str, float]) -> list[tuple[str, float]]:
        """The workers that have become slow or recovered with this step, each with its present factor."""
        changed = []
        self._slow &= micro_batch_s.keys()
        self._num_steps = {worker: self._num_steps.get(worker, 0) for worker in micro_batch_s}
        for worker, factor in slowness(micro_batch_s).items():
            is_slow = worker in self._slow
            is_news = 0 < factor < RECOVERED if is_slow else factor >= SLOW
            self._num_steps[worker] = self._num_steps[worker] + 1 if is_news else 0
            if self._num_steps[worker] >= SURE_AFTER:
                self._num_steps[worker] = 0
                self._slow ^= {worker}
                changed.append((worker, factor))
        return changed


def _name(worker: str, factor: float, world: World, step: int) -> None:
    if factor >= SLOW:
        reason = f"{worker} is slow: it takes {factor:.1f} times as long for a micro-batch as the other workers"
        name = "worker.slow"
    else:
        reason, name = f"{worker} is no longer slow", "worker.recovered"
    log.info("%s", reason)
    emit(name, worker=worker, generation=world.generation, step=step, factor=factor, reason=reason)
