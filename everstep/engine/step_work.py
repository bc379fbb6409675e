"""Everything one worker holds: the state after its committed steps, and its share of the step under way.

`Engine` advances it micro-batch by micro-batch, `Regrouping` compares it with the peers', sends it and replaces it.
Knows nothing of groups and generations: a world's rank and size come in as arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch

from everstep import env
from everstep.engine.agreed_values import Agreed
from everstep.engine.backend import check_wish
from everstep.engine.balance import Balance
from everstep.engine.buckets import lay_out, trainable
from everstep.engine.data_source import DataSource
from everstep.engine.device_facts import backend_facts
from everstep.engine.gradients import Gradients
from everstep.engine.leadership import Leadership, MemberHello
from everstep.engine.module_buffers import ModuleBuffers
from everstep.engine.pace import clock_of
from everstep.engine.plan import Plan, plan_step
from everstep.engine.registry import Registry
from everstep.engine.seeds import fix_kernels
from everstep.engine.settings import Settings
from everstep.engine.steadiness import Steadiness
from everstep.engine.step_sum import Sum
from everstep.engine.worker_comparison import Comparison
from everstep.engine.world import World
from everstep.errors import UsageError


class Integrity(Enum):
    """Of the registered state."""

    WHOLE = "whole"
    UNFINISHED = "unfinished"  # the step is committed, but the script's work after it, such as a scheduler's, broke off
    BROKEN = "broken"  # an update or a load broke off half-way


MOST_ERRORS = 3  # NCCL errors without a completed step in between; after that, gloo is used


@dataclass(kw_only=True, slots=True)
class DeviceRecord:
    """Whether sums from device to device work on this worker. Errors caused by the death of a peer do not count."""

    is_tried: bool = False
    refusal: str = ""  # where they failed, and why; they are not tried again
    num_errors: int = 0  # since the last commit

    def note_error(self, worker: str, error: str) -> None:
        self.num_errors += 1
        if self.num_errors >= MOST_ERRORS:
            self.refusal = f"{worker}: NCCL failed {self.num_errors} times: {error}"


class StepWork:
    def __init__(self, on_backward_end: Callable[[], None]) -> None:
        self.registry = Registry()
        self.comparison = Comparison()
        self.data = DataSource()
        self.step = 0  # committed steps
        self.integrity = Integrity.WHOLE
        self.num_loads = 0  # of a peer's state
        self.agreed = Agreed()
        self.group_backend: str | None = None  # what init_process_group named for CUDA tensors
        self.balance = Balance()
        self.num_micro_batches = 0  # of a step of this generation
        self.plan: Plan | None = None  # of the step under way
        self.todo: list[int] = []  # its micro-batches that this worker has still to compute
        self.weights: dict[int, float] = {}  # by held micro-batch
        self.device_way = DeviceRecord()
        self.steadiness = Steadiness(self.registry)
        self._settings: Settings | None = None
        self._gradients: Gradients | None = None
        self._on_backward_end = on_backward_end

    # --- before the first step ----------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        if self._settings is None:
            raise UsageError(
                "the engine has no settings", hint="make an ElasticTrainer or controller", code="engine-not-configured"
            )
        return self._settings

    @property
    def has_settings(self) -> bool:
        return self._settings is not None

    @property
    def backend_wish(self) -> str:
        """How gradients should travel, one of `backend.WISHES`: as set by the trainer, otherwise by init_process_group,
        otherwise by the environment."""
        return self.settings.backend or self.group_backend or env.backend()

    @property
    def is_built(self) -> bool:
        return self._gradients is not None

    def configure(self, settings: Settings, data: DataSource | None = None) -> None:
        if self.is_built:
            raise UsageError(
                "training has begun", hint="make one ElasticTrainer or controller", code="configured-after-first-step"
            )
        check_wish(env.backend(), env.BACKEND)
        self._settings = settings
        self.data = data or self.data

    def resume(self, step: int) -> None:
        """Count on from a checkpoint's step."""
        if self.is_built:
            raise UsageError(
                "training has begun", hint="load the state before the first step", code="resumed-after-first-step"
            )
        self.step = step

    @property
    def gradients(self) -> Gradients:
        """At its first use, fixes what is summed: from then on no parameter may be added."""
        return self._gradients or self._build()

    def _build(self) -> Gradients:
        self.data.before_first_step()
        parameters = trainable(self.registry.modules)
        if not parameters:
            raise UsageError(
                "no parameter to train is registered",
                hint="pass the model to ElasticTrainer, or to controller.set_broadcast_model",
                code="no-parameter-registered",
            )
        settings, layout = self.settings, lay_out(parameters)
        if settings.is_exact:
            fix_kernels(settings.threads, is_cuda=any(p.is_cuda for p in parameters))
        self.num_micro_batches = settings.micro_batches(1)
        self.sum = Sum(parameters, layout, num_leaves=self.num_micro_batches, is_exact=settings.is_exact)
        self._gradients = Gradients(parameters, layout, self.sum.fold, self.sum.ready, self._on_backward_end)
        self.buffers = ModuleBuffers(self.registry.modules)
        self.balance.pace.clock = clock_of(layout.device)
        return self._gradients

    def close(self) -> None:
        if self._gradients is not None:
            self.sum.close()
            self._gradients.close()

    # --- the step under way -------------------------------------------------------------------------------

    @property
    def held(self) -> tuple[int, ...]:
        """Micro-batches of this step that this worker has computed."""
        return self.gradients.fold.held

    @property
    def void(self) -> frozenset[int]:
        return frozenset(self.data.void_micro_batches())

    def make_plan(
        self, world: World, held: Sequence[Sequence[int]] | None = None, resting: Collection[int] = ()
    ) -> None:
        """`held`: by rank, the micro-batches already computed; `resting`: ranks that compute nothing in this step."""
        self.plan = plan_step(
            num_micro_batches=self.num_micro_batches,
            size=world.size,
            held=held,
            shares=self.balance.shares,
            resting=resting,
        )
        self.todo = list(self.plan.todo[world.rank])
        for micro_batch in self.void.intersection(self.todo):
            self.weights[micro_batch] = 0.0
            self.gradients.add_nothing(micro_batch)
            self.todo.remove(micro_batch)

    def run(self, world: World) -> tuple[int, ...]:
        """The micro-batches that this worker gets in each further step, until shares change."""
        shares = self.balance.shares
        return plan_step(num_micro_batches=self.num_micro_batches, size=world.size, shares=shares).todo[world.rank]

    def note_computed(self, rank: int) -> None:
        """This worker has computed its micro-batches of the step; those without weight say nothing about its speed."""
        mine = self.plan.todo[rank] if self.plan is not None else ()
        self.balance.pace.computed(len(mine) if all(self.weights.get(each) for each in mine) else 0)

    def refresh_todo(self, rank: int) -> None:
        """After a micro-batch that broke off may have spoiled the sum of those before it."""
        assert self.plan is not None
        held, void = self.held, self.void
        mine = [micro_batch for micro_batch in self.plan.micro_batches(rank) if micro_batch not in held]
        for micro_batch in void.intersection(mine):
            self.gradients.add_nothing(micro_batch)
        self.todo = [micro_batch for micro_batch in mine if micro_batch not in void]

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[None]:
        """A backward inside adds to the micro-batch without ending it."""
        gradients = self.gradients
        gradients.is_accumulating = True
        try:
            yield
        finally:
            gradients.is_accumulating = False

    def forget(self) -> None:
        """Nothing of the step under way is computed."""
        self.gradients.clear()
        self.weights.clear()
        self.plan = None

    def drop_sum(self) -> None:
        if self.is_built:
            self.sum.drop()

    def commit(self, *, counts: bool, must_check: bool) -> None:
        self.integrity = Integrity.WHOLE
        self.step += counts
        self.device_way.num_errors = 0
        self.forget()
        self.gradients.end()
        self.buffers.commit()
        self.sum.forget()
        self.comparison.committed()
        self.steadiness.committed()
        if must_check:
            self.comparison.note_weights(self.gradients.parameters)

    # --- towards the peers --------------------------------------------------------------------------------

    def hello(
        self,
        *,
        worker: str,
        job: str,
        settled: int,
        is_agreeing: bool,
        neighbors: Collection[int],
        inlet: list[Any],
    ) -> MemberHello:
        return MemberHello(
            worker=worker,
            job=job,
            settled=settled,
            step=self.step,
            is_dirty=self.integrity is Integrity.BROKEN,
            is_unfinished=self.integrity is Integrity.UNFINISHED,
            layout=self.sum.layout.digest,
            num_micro_batches=self.settings.num_micro_batches or 0,
            is_exact=self.settings.is_exact,
            torch=torch.__version__,
            backend=backend_facts(
                worker,
                self.backend_wish,
                self.sum.layout.device,
                refusal=self.device_way.refusal,
                is_tried=self.device_way.is_tried,
            ),
            is_agreeing=is_agreeing,
            neighbors=sorted(neighbors),
            inlet=inlet,
            held=list(self.held),
            answers=self.agreed.answers,
            num_passed=self.agreed.num_passed,
        )

    def renumber(self, hellos: Sequence[MemberHello], world: World) -> list[MemberHello]:
        """Where each worker has the same number of micro-batches, each generation numbers them by rank."""
        per_worker = self.settings.micro_batches_per_worker
        if per_worker is None:
            return list(hellos)
        self.num_micro_batches = self.settings.micro_batches(world.size)
        hellos = [
            replace(hello, held=list(range(rank * per_worker, rank * per_worker + len(hello.held))))
            for rank, hello in enumerate(hellos)
        ]
        held, numbers = self.held, hellos[world.rank].held
        self.weights = dict(zip(numbers, (self.weights[micro_batch] for micro_batch in held), strict=True))
        self.buffers.rename(dict(zip(held, numbers, strict=True)))
        self.gradients.rename(numbers)
        return hellos

    def state(self) -> dict[str, Any]:
        self.buffers.restore()  # a micro-batch computed since the last commit may have changed them
        own = {"step": self.step, "seed": self.settings.seed, "threads": torch.get_num_threads()}
        return {"engine": own, "objects": self.registry.state()}

    def load(self, state: dict[str, Any]) -> None:
        self.integrity = Integrity.BROKEN
        self.num_loads += 1
        self.comparison.forget()
        self.steadiness.loaded()
        self.registry.load(state["objects"])
        self.step = state["engine"]["step"]
        self._settings = replace(self.settings, seed=state["engine"]["seed"])
        if self.settings.is_exact:
            torch.set_num_threads(state["engine"]["threads"])
        self.buffers.rebase()
        self.agreed = Agreed()
        self.integrity = Integrity.WHOLE
        self.gradients.clear()
        self.weights.clear()

    def settle(self, hellos: Sequence[MemberHello], leadership: Leadership, world: World) -> None:
        """All workers hold the leader's state, or soon will: plan the step, and keep the micro-batches computed by
        workers that already held it. Newcomers compute nothing in this step, so that no one waits for their work."""
        if self.integrity is Integrity.UNFINISHED:
            self.integrity = Integrity.WHOLE
        self.balance.begin_generation(
            [hello.worker for hello in hellos],
            self.num_micro_batches,
            can_deal=self.settings.num_micro_batches is not None,
            is_exact=self.settings.is_exact,
        )
        current = [rank for rank in range(world.size) if rank not in leadership.receivers]
        self.agreed.answers = max((hellos[rank].answers for rank in current), key=len)
        self.agreed.num_passed = max(hellos[rank].num_passed for rank in current)
        if hellos[leadership.leader].settled > 0:  # newcomers begin with a micro-batch and ask nothing in this step
            self.agreed.ranks = [rank for rank, hello in enumerate(hellos) if hello.settled > 0]
        held = [hello.held if rank in current else [] for rank, hello in enumerate(hellos)]
        self.make_plan(world, held, self._resting(hellos, leadership))

    def _resting(self, hellos: Sequence[MemberHello], leadership: Leadership) -> tuple[int, ...]:
        is_beginning = hellos[leadership.leader].settled == 0
        if is_beginning or self.settings.micro_batches_per_worker is not None:  # then each worker has its own
            return ()
        return tuple(rank for rank in leadership.receivers if hellos[rank].settled == 0)
