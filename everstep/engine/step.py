"""The step transaction: compute micro-batches, sum, update; applied by all or by none.

A worker asks for its next micro-batch, computes it, and with its last one waits for the sum over everybody's. If a peer
is lost before that, nothing was applied: the worker regroups and goes on under a new plan, keeping the micro-batches it
has. If nothing is left for it to compute, it does so without leaving backward(); else PeerLost takes it out of the
micro-batch, to be called again with the next one. Regrouping happens at three points only: when a micro-batch is asked
for, at the end of backward, and in `reduce`. Knows nothing of the doors above: how a micro-batch's data are found is
theirs."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from everstep.engine.agreed_values import Agreed, weighted_mean
from everstep.engine.buckets import lay_out, trainable
from everstep.engine.determinism import fix_kernels
from everstep.engine.fixed_world import LoneMembership
from everstep.engine.gradients import Gradients
from everstep.engine.group import LARGEST_WORLD, TAG_HEADER, Group
from everstep.engine.leadership import Leadership, MemberHello, check_fit, decide_leader, exchange
from everstep.engine.leaf_sums import Target
from everstep.engine.leaving import ASKED, Farewell, Leaving, on_sigterm
from everstep.engine.membership import Membership
from everstep.engine.micro_batch_pace import MicroBatchPace
from everstep.engine.module_buffers import ModuleBuffers
from everstep.engine.plan import Plan, plan_step
from everstep.engine.pulse import (
    ENDS,
    STEPS,
    DataPlace,
    Header,
    Pulse,
    PulseDecision,
    decide_pulse,
    header_bytes,
    in_order,
)
from everstep.engine.registry import Registry
from everstep.engine.seeds import micro_batch_seed, seed_everything
from everstep.engine.settings import Settings
from everstep.engine.step_sum import Sum, Summed
from everstep.engine.transfer import receive_state, send_state
from everstep.engine.worker_comparison import Comparison, first_difference, way_out
from everstep.engine.world import ALONE, World
from everstep.errors import EverstepError, PeerLost, PermanentError, StateMismatch, UsageError
from everstep.events import emit
from everstep.ipc.progress_page import ProgressPage
from everstep.wire import COMPUTING, OUTSIDE, WAITING

log = logging.getLogger("everstep")


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """One micro-batch to be computed: the `index`-th of the `step`-th global batch."""

    step: int
    index: int
    is_ghost: bool = False  # nothing is left for this worker: it runs the body to take the step, and adds nothing


class Engine:
    """One per process. `configure` first; then next_micro_batch, begin_micro_batch, update and end_micro_batch, over
    and over."""

    def __init__(
        self,
        make_membership: Callable[[ProgressPage, Callable[[int], None]], LoneMembership | Membership],
        board: ProgressPage,
    ) -> None:
        self._settings: Settings | None = None
        self.registry = Registry()
        self.world: World = ALONE
        self.step = 0  # committed steps
        self.is_leaving = False
        self.offered: MicroBatch | None = None  # the script holds its data, and has not begun it yet
        self.is_in_loop = False  # the script goes from micro-batch to micro-batch
        self.came_late = False  # its first state was that of workers which were training
        self.is_catching_up = False  # the script goes through what others have behind them: it agrees on nothing
        self.on_world: list[Callable[[Group], None]] = []  # told of each new world, in the script's thread
        self.on_closed: list[Callable[[int], None]] = []  # told of each closed generation, in any thread
        self.on_commit: list[Callable[[PulseDecision], None]] = []  # part of the commit: what advances with the step
        self.on_settled: list[Callable[[], None]] = []  # told when all members hold the same state
        self.on_empty: list[Callable[[PulseDecision], None]] = []  # told of steps that had no weight and do not count
        self.note: Callable[[], bytes] = bytes  # what all are to know of this worker when the step is committed …
        self.last_note: Callable[[bytes], bytes] = (
            bytes  # … after its last micro-batch: that note, or another of its length
        )
        self.void_micro_batches: Callable[[], Collection[int]] = tuple  # of the step to come: those without samples
        self.place: Callable[[], DataPlace] = DataPlace  # of the step to come, in the data
        self._membership = make_membership(board, self._generation_closed)
        self._board = board
        self._group: Group | None = None
        self._settled = 0
        self._is_dirty = False
        self._is_committed = False  # the step of the micro-batch under way
        self._is_unfinished = False  # the body broke off after a commit: its scheduler may not have been stepped
        self._num_loads = 0  # of a peer's state
        self._gradients: Gradients | None = None
        self._micro_batches = 0  # of a step of this generation
        self._plan: Plan | None = None
        self._pace = MicroBatchPace()
        self._note = b""
        self._todo: list[int] = []
        self._weights: dict[int, float] = {}  # by held micro-batch
        self._micro_batch: MicroBatch | None = None  # being computed …
        self._micro_batch_generation = 0  # … since this generation
        self._are_buffers_kept = False
        self._decision: PulseDecision | None = None  # of the step being committed
        self._must_regroup = False
        self._must_settle = False  # once more, in the same generation: a newcomer came while others were between steps
        self._is_agreeing = False
        self._farewell: Farewell | None = None  # it has asked to leave
        self._agreed = Agreed()
        self.comparison = Comparison()
        self.on_build: list[Callable[[], None]] = []  # told before the state is fixed, and the first group settles

    def configure(self, settings: Settings) -> None:
        if self._gradients is not None:
            raise UsageError("training has begun already", hint="make one ElasticTrainer or controller per process")
        self._settings = settings

    @property
    def settings(self) -> Settings:
        if self._settings is None:
            raise UsageError("how to train is not known", hint="make an ElasticTrainer or a controller first")
        return self._settings

    @property
    def _max_workers(self) -> int | None:
        """How many can train together. Who begins with too many is refused; more that come later are spares."""
        most = self._settings.num_micro_batches if self._settings is not None else None
        is_beginning = self._settled == 0 and not self._membership.is_newcomer
        return most if is_beginning else min(most or LARGEST_WORLD, LARGEST_WORLD)

    def resume(self, step: int) -> None:
        """Count on from a checkpoint's step."""
        if self._gradients is not None:
            raise UsageError("training has begun already", hint="load the trainer's state before the first step")
        self.step = step

    def forget_plan(self) -> None:
        """The step to come is to be of other data than was thought."""
        if self._plan is not None:
            self._build().clear()
            self._weights.clear()
            self._plan = None

    # --- joining ------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Form the first group. A newcomer does not wait here: it stays alone until its first step."""
        if self._group is None:
            self._membership.announce()
            if self._membership.is_newcomer:
                self._group = Group(ALONE, None, [])
            else:
                self._membership.hold(0, 0, self._max_workers)
                self._membership.arrive(0)
                self._take_group()
            on_sigterm(self._wish_to_leave)
            faulthandler.register(signal.SIGUSR2, all_threads=True)  # the agent asks for stacks before it kills

    def _build(self) -> Gradients:
        """Fix what is to be summed; from here on no parameter may be added."""
        if self._gradients is None:
            for tell in self.on_build:
                tell()
            parameters = trainable(self.registry.modules)
            if not parameters:
                raise UsageError(
                    "no parameter to train is registered",
                    hint="pass the model to ElasticTrainer, or to controller.set_broadcast_model",
                )
            settings, layout = self.settings, lay_out(parameters)
            if settings.is_exact:
                fix_kernels(settings.threads, is_cuda=any(p.is_cuda for p in parameters))
            self._micro_batches = settings.micro_batches(1)
            self._sum = Sum(parameters, layout, num_leaves=self._micro_batches, is_exact=settings.is_exact)
            self._gradients = Gradients(parameters, layout, self._sum.fold, self._sum.ready, self._backward_ended)
            self._buffers = ModuleBuffers(self.registry.modules)
        return self._gradients

    # --- a micro-batch -------------------------------------------------------------------------------------------

    def next_micro_batch(self) -> MicroBatch:
        """The micro-batch that this worker has to compute next; regroups first if it must, or leaves."""
        self.join()
        self._build()
        if self._farewell is not None:
            self.leave(ASKED)
            raise Leaving
        while (
            self._settled == 0
            or self._must_regroup
            or self._must_settle
            or self._membership.is_closed(self.world.generation)
        ):
            self._regroup()
        if self._is_dirty:
            raise PermanentError(f"the update of step {self.step} broke off half-way and no peer holds the state")
        if self._plan is None:
            self._make_plan(None)
        return self._first_of(self._todo)

    def _first_of(self, todo: Sequence[int]) -> MicroBatch:
        return MicroBatch(step=self.step, index=todo[0]) if todo else MicroBatch(step=self.step, index=0, is_ghost=True)

    @property
    def num_held(self) -> int:
        """Micro-batches of this step that this worker has computed."""
        return len(self._build().fold.held)

    @property
    def todo(self) -> tuple[int, ...]:
        """The micro-batches of this step that this worker has still to compute."""
        return tuple(self._todo)

    @property
    def run(self) -> tuple[int, ...]:
        """The micro-batches that will be this worker's in each further step of this generation."""
        return plan_step(num_micro_batches=self._micro_batches, size=self.world.size).todo[self.world.rank]

    def begin_micro_batch(self, micro_batch: MicroBatch, weight: float) -> None:
        if self._micro_batch is not None:
            raise UsageError("a step inside a step", hint="leave `with trainer.step():` before entering it again")
        if weight < 0:
            raise UsageError(
                f"weight={weight} is negative", hint="use the number of samples or tokens in the micro-batch"
            )
        is_mine = not self._todo if micro_batch.is_ghost else micro_batch.index in self._todo
        if micro_batch.step != self.step or not is_mine:
            raise UsageError(
                f"micro-batch {micro_batch.index} of step {micro_batch.step} is not this worker's to compute now"
            )
        gradients = self._build()
        self.is_catching_up, self.offered = False, None
        self._micro_batch, self._micro_batch_generation = micro_batch, self.world.generation
        self._membership.is_in_step = True
        self._decision = None
        self._are_buffers_kept = self._is_committed = False
        self._buffers.begin_micro_batch()
        seed_everything(micro_batch_seed(self.settings.seed, micro_batch.step, micro_batch.index))
        target = None
        if micro_batch.is_ghost:
            gradients.begin_ghost()
        else:
            self._weights[micro_batch.index] = weight
            target = gradients.begin(micro_batch.index, weight, is_last=self.is_last_micro_batch)
        self._board.write(step=self.step, micro_batch=micro_batch.index, phase=COMPUTING)
        if self.is_last_micro_batch and self.world.size > 1:
            self._launch(target)

    @property
    def is_last_micro_batch(self) -> bool:
        """Inside a micro-batch: this worker's last one in the step, or the step is committed already."""
        micro_batch = self._micro_batch
        if micro_batch is None or self._decision is not None or not self._todo:
            return micro_batch is not None
        return not micro_batch.is_ghost and self._todo == [micro_batch.index]

    @property
    def is_over(self) -> bool:
        """The present generation is closed: the next one comes with the next micro-batch, or the next answer."""
        return self._membership.is_closed(self.world.generation)

    @property
    def is_whole(self) -> bool:
        """No update broke off half-way: what is registered is the state after `step` steps."""
        return not self._is_dirty

    @property
    def is_in_micro_batch(self) -> bool:
        return self._micro_batch is not None

    @property
    def summed(self) -> Collection[int]:
        """By id: the parameters whose gradients are the mean over all micro-batches."""
        return self._build().ids

    @property
    def is_void(self) -> bool:
        """Inside a micro-batch: the step has been summed, had no weight, and does not count."""
        return self._decision is not None and not self._counts

    @contextlib.contextmanager
    def in_phase(self, phase: str) -> Iterator[None]:
        """For what a worker does outside of its micro-batches and their sum, so that a cut network is noticed there
        too."""
        before = self._board.progress
        self._board.write(step=self.step, micro_batch=before.micro_batch, phase=OUTSIDE)
        self._board.write(step=self.step, micro_batch=before.micro_batch, phase=phase)
        try:
            yield
        finally:
            self._board.write(step=self.step, micro_batch=before.micro_batch, phase=OUTSIDE)
            self._board.write(step=self.step, micro_batch=before.micro_batch, phase=before.phase)

    @contextlib.contextmanager
    def sharing(self) -> Iterator[None]:
        """Wraps work that the surviving workers finish if this one dies, even if it is rank 0."""
        self._board.note_shared(True)
        try:
            yield
        finally:
            self._board.note_shared(False)

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[None]:
        """A backward inside adds to the micro-batch without ending it."""
        gradients = self._build()
        gradients.is_accumulating = True
        try:
            yield
        finally:
            gradients.is_accumulating = False

    def end_micro_batch(self) -> None:
        """The micro-batch's body came to its end."""
        if not self.is_last_micro_batch:
            self._micro_batch_done()
            self._build().end()
        elif self._decision is None:
            self._build().check_ended()
            self._complete_last_micro_batch()
        self._micro_batch = None
        self._membership.is_in_step = False
        self._board.write(step=self.step, micro_batch=-1, phase=OUTSIDE)

    def abandon_micro_batch(self, error: BaseException) -> None:
        """The micro-batch's body broke off. Micro-batches computed before stay; the step is done again by all."""
        micro_batch, self._micro_batch = self._micro_batch, None
        self._membership.is_in_step = False
        self.stop_job_for(error)
        gradients = self._build()
        gradients.abandon()
        self._board.write(step=self.step, micro_batch=-1, phase=OUTSIDE)
        if self._is_committed:
            self._break_off_after_commit(error)
            return
        if self._plan is None or self.world.generation != self._micro_batch_generation:
            return  # regrouped meanwhile: a new plan has been made
        is_summed = self._decision is not None
        must_tell = self._sum.is_under_way or is_summed or isinstance(error, PeerLost)
        self._sum.drop()
        if self.world.size > 1 and must_tell:
            # The others may have taken what this micro-batch has sent so far: they must not count on it.
            where = f"micro-batch {micro_batch.index if micro_batch else '?'} of step {self.step}"
            self._membership.report_broken(self.world.generation, f"{type(error).__name__} in {where}")
        elif is_summed:
            gradients.clear()
        self._refresh_todo()

    def _break_off_after_commit(self, error: BaseException) -> None:
        """What the others' scripts do after the update, such as a scheduler's step, this one may not have done: if it
        goes on, it gets their state first. Alone, it is what there is."""
        if self.world.size > 1:
            self._is_unfinished = True
            reason = f"{type(error).__name__} after the update of step {self.step - self._counts}"
            self._membership.report_broken(self.world.generation, reason)

    def _refresh_todo(self) -> None:
        assert self._plan is not None
        held = self._build().fold.held
        void = self._void  # added as nothing; perhaps to a sum that a broken micro-batch has spoilt
        mine = [micro_batch for micro_batch in self._plan.micro_batches(self.world.rank) if micro_batch not in held]
        for micro_batch in void.intersection(mine):
            self._build().add_nothing(micro_batch)
        self._todo = [micro_batch for micro_batch in mine if micro_batch not in void]

    def _micro_batch_done(self) -> None:
        """The micro-batch's gradients are complete; idempotent."""
        micro_batch = self._micro_batch
        assert micro_batch is not None
        if micro_batch.index in self._todo and not micro_batch.is_ghost:
            self._keep_buffers()
            self._build().complete()
            self._todo.remove(micro_batch.index)

    # --- the sum ------------------------------------------------------------------------------------------

    def _launch(self, target: Target | None) -> None:
        """Send what is complete, and what becomes so while backward runs."""
        assert self._plan is not None and self._group is not None
        mine = set(self._plan.micro_batches(self.world.rank))
        weights = tuple(
            self._weights[micro_batch] if micro_batch in mine else -1.0 for micro_batch in range(self._micro_batches)
        )
        self._note = self.note()
        header = Header(
            generation=self.world.generation,
            step=self.step,
            kind=STEPS,
            place=self.place(),
            weights=weights,
            note_bytes=len(self._note),
        )
        self._sum.launch(self._group, self._plan, target, header, self._buffers)

    def _backward_ended(self) -> None:
        self._keep_buffers()
        if self.is_last_micro_batch:
            self._complete_last_micro_batch()
        if not self.is_last_micro_batch:
            self._buffers.restore()  # who saves the model in the rest of the body saves that of the last commit

    def _keep_buffers(self) -> None:
        """When a micro-batch's backward ends, whatever comes after it: so buffers do not depend on which micro-batch
        is the last."""
        micro_batch = self._micro_batch
        if (
            micro_batch is not None
            and not micro_batch.is_ghost
            and not self._are_buffers_kept
            and self._weights[micro_batch.index]
        ):
            self._are_buffers_kept = True
            self._buffers.keep(micro_batch.index, self._build().fold.held)

    def _complete_last_micro_batch(self) -> None:
        """All micro-batches are computed: wait for the sum, and through regroupings as long as nothing is left to
        compute.

        If a loss has left more to compute, this micro-batch is kept and was not the last one after all."""
        attempted, num_loads = self.step, self._num_loads
        self._micro_batch_done()
        self._pace.micro_batches_done(len(self._plan.todo[self.world.rank]) if self._plan is not None else 0)
        self._board.write(step=self.step, micro_batch=-1, phase=WAITING)
        while True:
            try:
                with self._stopping_all():
                    summed = self._finish_sum()
                break
            except PeerLost as lost:
                self._regroup(lost)
                if self.step != attempted:
                    raise PeerLost(f"{lost.message}; step {self.step} is next") from lost
                if self._num_loads != num_loads:
                    raise PeerLost(f"{lost.message}; what was computed here was of a lost generation") from lost
                if self._todo:
                    self._board.write(step=self.step, micro_batch=-1, phase=COMPUTING)
                    return
                if self.world.size > 1:
                    self._launch(None)
        decision = decide_pulse(summed.pulses, summed.total)
        if decision.is_differing:
            self._name_difference()
        self._decision = decision
        self._board.write(step=self.step, micro_batch=-1, phase=COMPUTING)  # the update: nobody waits for a peer in it
        if summed.buffers is not None:
            self._buffers.adopt(summed.buffers)
        else:
            self._buffers.restore()
        self._build().give_user_gradients(summed.means, self._decision.used)

    def _pulse(self) -> Pulse:
        return Pulse(
            generation=self.world.generation,
            step=self.step,
            wants_regroup=self._membership.newcomers > 0,
            is_leaving=self.is_leaving,
            wants_check=self.comparison.is_due(time.monotonic(), is_first=self.world.rank == 0),
            settings=self.comparison.settings,
            weights=self.comparison.weights,
            used=self._build().used_parameters(),
            micro_batch_s=self._pace.micro_batch_s,
            note=self.last_note(self._note),
        )

    @contextlib.contextmanager
    def _stopping_all(self) -> Iterator[None]:
        """What does not fit together is nobody's loss: the others must not go on without this worker."""
        try:
            yield
        except StateMismatch as mismatch:
            self.stop_job(mismatch.message)
            raise

    def stop_job(self, reason: str) -> None:
        """For all workers, with exit code 1. Not by one that joins a job under way and does not fit: it is turned away.
        Where all begin, nobody is right."""
        if self._settled > 0 or self.world.continues == 0:
            self._membership.stop_job(reason)

    def stop_job_for(self, error: BaseException | None) -> None:
        """If the script uses us in a wrong way: what is wrong in one worker's is wrong in all."""
        if isinstance(error, UsageError | StateMismatch):
            self.stop_job(f"{type(error).__name__}: {error.message}")

    def died_of(self, error: BaseException) -> None:
        """The script has not handled it: tell the others if it concerns them, and the agent if it is not of ours."""
        self.stop_job_for(error)
        if isinstance(error, Exception) and not isinstance(error, EverstepError):
            self._board.note_raised()

    def _name_difference(self) -> None:
        """All come here in the same step, or at the end. Returns if the digests differ and nothing else does."""
        assert self._group is not None
        names = {id(p): name for module in self.registry.modules for name, p in module.named_parameters()}
        mine = self.comparison.facts([names.get(id(p), "?") for p in self._build().parameters])
        with self._stopping_all():
            try:
                raws = self._group.gather(json.dumps([self._membership.worker, mine]).encode())
                difference = first_difference([json.loads(raw) for raw in raws])
            except PeerLost:  # one of them is gone already
                difference = "the settings of their optimizers, or their weights"
            if difference is not None:
                raise StateMismatch(
                    f"after {self.step} steps the workers are not the same: {difference}",
                    hint=way_out(difference),
                )

    def _finish_sum(self) -> Summed:
        if self.world.size == 1:
            self._note = self.note()
            total = in_order(self._weights[micro_batch] for micro_batch in range(self._micro_batches))
            return self._sum.finish_alone(self._pulse(), total, self._buffers)
        is_closed = self._membership.is_closed(self.world.generation)
        return self._sum.finish(self._pulse(), is_closed=is_closed)

    # --- the update ---------------------------------------------------------------------------------------

    def await_sum(self) -> bool:
        """In the last micro-batch: whether the gradients are the mean over all now. False: a peer was lost, and this
        micro-batch was not the last one after all."""
        if self._decision is None:
            self._build().check_ended()
            self._complete_last_micro_batch()  # backward touched no parameter of ours
        return self._decision is not None

    def update(self, apply: Callable[[], Any], *, is_final: bool) -> Any:
        """Run one optimizer's step on the summed gradients; the final one commits the step."""
        if not self.await_sum():
            return None
        self._is_dirty = True
        result = apply() if self._counts else None
        if is_final:
            self.commit()
        return result

    @property
    def _counts(self) -> bool:
        assert self._decision is not None
        return self.settings.counts_empty_steps or not self._decision.is_empty

    def commit(self) -> None:
        decision = self._decision
        assert decision is not None
        self._is_dirty = self._membership.is_in_step = False
        self._is_committed = True
        self.step += self._counts
        gradients = self._build()
        gradients.clear()
        gradients.end()
        self._weights.clear()
        self._plan = None
        self._buffers.commit()
        self._sum.forget()
        self.comparison.committed()
        if decision.must_check and self.world.size > 1:
            self.comparison.note_weights(gradients.parameters)
        self._pace.committed(decision.micro_batch_s)
        for advance in self.on_commit if self._counts else self.on_empty:
            advance(decision)
        self._board.write(step=self.step, micro_batch=-1, phase=OUTSIDE)
        if not self._counts:
            return
        self._agreed = Agreed()
        self._membership.hold(self._settled, self.step, self._max_workers)
        emit("step.committed", step=self.step, generation=self.world.generation, size=self.world.size)

    def after_commit(self) -> None:
        """At the end of the micro-batch that committed: do what the pulse decided."""
        decision = self._decision
        if decision is None or not decision.must_regroup or self._todo:
            return
        if self.world.rank in decision.leavers:
            self._farewell = self._say_farewell(ASKED)
            return
        self._must_regroup = True
        self._membership.arrive(self.world.generation)

    # --- regrouping ---------------------------------------------------------------------------------------

    def _regroup(self, lost: PeerLost | None = None) -> None:
        """Wait for the next generation and settle in it; again, if that one breaks too."""
        started, farewell = time.monotonic(), self._farewell
        if farewell is not None and farewell.is_granted():
            raise Leaving  # the others go on without this worker
        if self._settled == 0 and self.world is ALONE:
            self._membership.hold(0, self.step, self._max_workers)
            self._membership.arrive(0)
        if lost is not None:
            self._membership.report_broken(self.world.generation, lost.message)
        if self._gradients is not None:
            self._sum.drop()
        while True:
            needs_group = self._must_regroup or self._membership.is_closed(self.world.generation)
            if needs_group or self.world is ALONE:
                self._take_group()
            self._must_regroup = False
            try:
                with self._stopping_all():
                    leadership = self._settle()
                break
            except PeerLost as again:
                self._membership.report_broken(self.world.generation, again.message)
        if farewell is not None:
            self._farewell = self._say_farewell(farewell.reason)
        for tell in self.on_settled:
            tell()
        emit("regroup.settled", generation=self.world.generation, size=self.world.size, rank=self.world.rank,
             step=self.step, seconds=time.monotonic() - started, reason=leadership.reason)  # fmt: skip

    def _take_group(self) -> None:
        group = self._membership.next_group(self.world.generation)
        if self._group is not None and self._group is not group:
            self._group.close()
        self._group, self.world = group, group.world
        if self._gradients is not None:
            self._sum.keep_neighbours(group)
        for tell in self.on_world:
            tell(group)

    def _settle(self) -> Leadership:
        assert self._group is not None
        gradients, group, rank = self._build(), self._group, self.world.rank
        with self.in_phase(WAITING):
            hellos = exchange(self._hello(), group)
        if self.settings.micro_batches_per_worker is not None:
            hellos = self._rename_micro_batches(hellos, self.settings.micro_batches_per_worker)
        leadership = decide_leader(hellos, self.world.continues)
        check_fit(hellos, leadership.leader, rank)
        if rank == leadership.leader and leadership.receivers:
            with self.in_phase(COMPUTING):  # a long transfer is no stall
                send_state(self._state(), group, leadership.receivers, self._membership.worker)
        elif rank in leadership.receivers:
            num_asked = self._agreed.num_asked
            with self.in_phase(WAITING):
                self._load(receive_state(group, leadership.leader, self._membership.worker))
            if hellos[leadership.leader].settled == 0:  # all begin, and have asked for the same values before
                self._agreed.num_asked = num_asked
            gradients.clear()
            self._weights.clear()
        is_amid = any(hello.is_agreeing for hello in hellos)
        # What the script does between two steps, such as a scheduler's step after an epoch, is not in the state that a
        # newcomer gets here: it stays unsettled, and gets the state again when the others are at their next
        # micro-batch.
        self._must_settle = is_amid and hellos[rank].settled > 0 and any(hello.settled == 0 for hello in hellos)
        if hellos[rank].settled == 0:
            self.came_late = hellos[leadership.leader].settled > 0
        self._settled = 0 if is_amid and hellos[rank].settled == 0 else self.world.generation
        self._is_unfinished = False
        self._pace = MicroBatchPace()
        self._membership.hold(self._settled, self.step, self._max_workers)
        self._membership.report_settled(self.world.generation, self.step)
        current = [rank for rank in range(self.world.size) if rank not in leadership.receivers]
        self._agreed.answers = max((hellos[rank].answers for rank in current), key=len)
        if (
            hellos[leadership.leader].settled > 0
        ):  # a newcomer begins with a micro-batch: it asks for no value of this step
            self._agreed.ranks = [rank for rank, hello in enumerate(hellos) if hello.settled > 0]
        self._make_plan([hello.held if rank in current else [] for rank, hello in enumerate(hellos)])
        log.info(
            "generation %d: rank %d of %d at step %d; %s",
            self.world.generation, rank, self.world.size, self.step, leadership.reason,
        )  # fmt: skip
        return leadership

    def _rename_micro_batches(self, hellos: Sequence[MemberHello], per_worker: int) -> list[MemberHello]:
        """So many for each worker: they are numbered through anew in each generation."""
        self._micro_batches = self.settings.micro_batches(self.world.size)
        hellos = [
            replace(hello, held=list(range(rank * per_worker, rank * per_worker + len(hello.held))))
            for rank, hello in enumerate(hellos)
        ]
        gradients, names = self._build(), hellos[self.world.rank].held
        self._weights = dict(
            zip(names, (self._weights[micro_batch] for micro_batch in gradients.fold.held), strict=True)
        )
        self._buffers.rename(dict(zip(gradients.fold.held, names, strict=True)))
        gradients.rename(names)
        return hellos

    def _hello(self) -> MemberHello:
        return MemberHello(
            worker=self._membership.worker,
            job=self.world.job,
            settled=self._settled,
            step=self.step,
            is_dirty=self._is_dirty,
            is_unfinished=self._is_unfinished,
            layout=self._sum.layout.digest,
            num_micro_batches=self.settings.num_micro_batches or 0,
            is_exact=self.settings.is_exact,
            torch=torch.__version__,
            is_agreeing=self._is_agreeing,
            held=list(self._build().fold.held),
            answers=self._agreed.answers,
        )

    def _make_plan(self, held: Sequence[Sequence[int]] | None) -> None:
        micro_batch_s = self._pace.of_all if self.settings.is_balanced and held is None else ()
        self._plan = plan_step(
            num_micro_batches=self._micro_batches, size=self.world.size, held=held, micro_batch_s=micro_batch_s
        )
        self._todo = list(self._plan.todo[self.world.rank])
        for micro_batch in self._void.intersection(self._todo):
            self._weights[micro_batch] = 0.0
            self._build().add_nothing(micro_batch)
            self._todo.remove(micro_batch)

    @property
    def _void(self) -> frozenset[int]:
        return frozenset(self.void_micro_batches())

    def _state(self) -> dict[str, Any]:
        self._buffers.restore()  # a micro-batch computed since the last commit may have changed them
        own = {"step": self.step, "seed": self.settings.seed, "threads": torch.get_num_threads()}
        return {"engine": own, "objects": self.registry.state()}

    def _load(self, state: dict[str, Any]) -> None:
        self._is_dirty = True
        self._num_loads += 1
        self.comparison.forget()
        self.registry.load(state["objects"])
        self.step = state["engine"]["step"]
        self._settings = replace(self.settings, seed=state["engine"]["seed"])
        if self.settings.is_exact:
            torch.set_num_threads(state["engine"]["threads"])
        self._buffers.rebase()
        self._agreed = Agreed()
        self._is_dirty = False
        self._board.write(step=self.step, micro_batch=-1, phase=OUTSIDE)

    # --- what all agree on -------------------------------------------------------------------------

    def reduce(self, value: float, weight: float) -> float:
        """The weighted mean over all workers; who missed it gets its own value."""
        said = self.gather([value, weight])
        return value if said is None else weighted_mean(said)

    def gather(self, value: Any, name: str | None = None) -> list[Any] | None:
        """What all workers say here, plain data by rank, retried when a peer is lost.

        `name`: of the question, for whoever was brought to this step by a peer and may ask only some of them.

        None: this worker missed the answer, because it was taken to a later step while it waited, or because it goes
        through what the others have behind them."""
        if self._is_amid_step:
            raise UsageError(
                f"reduce() in the middle of step {self.step}: workers have different numbers of micro-batches; some "
                "would "
                "wait for the others for ever",
                hint="ask between epochs; or once per step, after it: `if trainer.num_steps > before:`",
            )
        if self.is_catching_up:
            return None
        self.join()
        step, name = self.step, name or self._agreed.name()
        self._is_agreeing = True
        try:
            return self._agree(step, name, value)
        finally:
            self._is_agreeing = False

    def _agree(self, step: int, name: str, value: Any) -> list[Any] | None:
        while self.step == step and name not in self._agreed.answers:
            try:
                assert self._group is not None
                if self._group.is_broken:
                    raise PeerLost(f"the group of generation {self.world.generation} is broken")
                # A generation closed in good order serves until the next micro-batch: there all workers are at one
                # place.
                with self.in_phase(WAITING), self._stopping_all():
                    self._agreed.agree(name, value, self._group)
            except PeerLost as lost:
                self._regroup(lost)
        return self._agreed.answers[name] if self.step == step else None

    @property
    def agreeing(self) -> tuple[int, int]:
        """This worker's place among those who ask for answers now, and their number."""
        ranks = self._agreed.ranks
        if ranks is None or self.world.rank not in ranks:
            return self.world.rank, self.world.size
        return ranks.index(self.world.rank), len(ranks)

    @property
    def _is_amid_step(self) -> bool:
        if self.offered is not None or self.is_in_micro_batch:
            return self._decision is None or not self.is_in_micro_batch
        return self.is_in_loop and bool(self._todo) and not self._void.issuperset(self._build().fold.held)

    # --- the end ------------------------------------------------------------------------------------------

    def conclude(self) -> None:
        """No further step is wanted here: make sure that all hold the last one before anybody goes."""
        if self._settled == 0 or self._farewell is not None:
            return
        while True:
            try:
                if self._must_regroup or self._must_settle or self._membership.is_closed(self.world.generation):
                    self._regroup()
                if self._swap_ends():
                    self._compare_ends()
                return
            except PeerLost as lost:
                self._regroup(lost)

    def _swap_ends(self) -> bool:
        """Whether all others end, too; else those who go on have heard that this worker does not."""
        assert self._group is not None
        header = Header(
            generation=self.world.generation, step=self.step, kind=ENDS, weights=(-1.0,) * self._micro_batches
        )
        with self.in_phase(WAITING):
            raws = self._group.swap(header.pack(), [header_bytes(self._micro_batches)] * self.world.size, TAG_HEADER)
        return all(Header.unpack(raw).kind == ENDS for raw in raws)

    def _compare_ends(self) -> None:
        """Nobody ends with other weights, or after another step, than the others."""
        assert self._group is not None
        if self.world.size == 1:
            return
        self.comparison.note_weights(self._build().parameters)
        mine = [self.step, self.comparison.settings, self.comparison.weights]
        with self.in_phase(WAITING):
            said = [json.loads(raw) for raw in self._group.gather(json.dumps(mine).encode())]
        with self._stopping_all():
            if len(steps := {step for step, _, _ in said}) > 1:
                raise StateMismatch(f"workers end after different steps: {', '.join(map(str, sorted(steps)))}")
        if any(len({digest for digest in digests if digest}) > 1 for digests in list(zip(*said, strict=True))[1:]):
            self._name_difference()

    def leave(self, reason: str) -> None:
        """Wait until nobody needs this worker's state any more."""
        self._farewell = self._farewell or self._say_farewell(reason)
        while not self._farewell.is_granted():
            self._regroup()  # which asks again

    def _say_farewell(self, reason: str) -> Farewell:
        generation, step = self.world.generation, self.step
        return Farewell(reason, lambda why: self._membership.may_leave(generation, step, why, is_asked=why == ASKED))

    def _wish_to_leave(self) -> None:
        self.is_leaving = True

    def close(self) -> None:
        if self._gradients is not None:
            self._sum.close()
            self._gradients.close()
        if self._group is not None:
            self._group.close()
        self._membership.close()

    def _generation_closed(self, generation: int) -> None:
        """Called in a thread of the membership's, perhaps late: wake whoever waits for the sum of this generation."""
        if self._gradients is not None:
            self._sum.abort(generation)
        if (group := self._group) is not None and group.world.generation <= generation:
            group.break_()  # also if it is an earlier one, closed in good order
        for tell in self.on_closed:
            tell(generation)
