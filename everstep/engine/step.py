"""The step transaction: compute micro-batches, sum, update; applied by all workers or by none.

A worker asks for its next micro-batch, computes it, and with its last one waits for the sum over all workers. If a peer
is lost before that, nothing was applied: the worker regroups and continues under a new plan, keeping the micro-batches
it has computed. If nothing is left for it to compute, it does so without leaving backward(); else PeerLost takes it out
of the micro-batch, to be called again with the next one. Regrouping happens at three points only: when a micro-batch is
asked for, at the end of backward, and in `gather`. Knows nothing of the doors above: they are its `DataSource`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everstep.engine.agreed_values import Agreed, weighted_mean
from everstep.engine.leaf_sums import Target
from everstep.engine.plan import MicroBatch
from everstep.engine.pulse import PulseDecision, decide_pulse, in_order
from everstep.engine.registry import Registry
from everstep.engine.regroup import MakeMembership, Regrouping
from everstep.engine.rehearsal import Rehearsal
from everstep.engine.seeds import micro_batch_seed, seed_everything
from everstep.engine.step_report import header_of, pulse_of
from everstep.engine.step_sum import Summed
from everstep.engine.step_work import Integrity, StepWork
from everstep.engine.world import REHEARSAL, World
from everstep.errors import EverstepError, PeerLost, PermanentError, UsageError
from everstep.events import emit
from everstep.ipc.progress_page import ProgressPage
from everstep.wire import COMPUTING, OUTSIDE, WAITING


class Engine:
    """One per process. First `work.configure`; then next_micro_batch, begin_micro_batch, update and end_micro_batch,
    over and over. `regrouping`: where it is between generations; `work`: what it holds."""

    def __init__(self, make_membership: MakeMembership, board: ProgressPage) -> None:
        self.work = StepWork(self._backward_ended)
        self.regrouping = Regrouping(make_membership, board, self.work)
        self.rehearsal = Rehearsal(self.regrouping, self.work)
        self.offered: MicroBatch | None = None  # the script holds its data, and has not begun it yet
        self._is_in_loop = False  # the script goes from micro-batch to micro-batch
        self._is_catching_up = False  # the script passes what the others have done already: it agrees on nothing
        self._board = board
        self._micro_batch: MicroBatch | None = None  # being computed …
        self._micro_batch_generation = 0  # … since this generation
        self._are_buffers_kept = False
        self._decision: PulseDecision | None = None  # of the step, from its sum to the next micro-batch
        self._is_committed = False  # the step of the micro-batch under way
        self._note = b""

    # --- what it is made of -------------------------------------------------------------------------------

    @property
    def registry(self) -> Registry:
        return self.work.registry

    @property
    def step(self) -> int:
        """Committed steps."""
        return self.work.step

    @property
    def world(self) -> World:
        return self.regrouping.world

    @property
    def visible_world(self) -> World:
        """The world as the script sees it."""
        return self.world if self.regrouping.rehearsed_step is None else REHEARSAL

    @property
    def visible_step(self) -> int:
        rehearsed = self.regrouping.rehearsed_step
        return self.step if rehearsed is None else rehearsed

    @property
    def is_whole(self) -> bool:
        """No update broke off half-way: what is registered is the state after `step` steps."""
        return self.work.integrity is not Integrity.BROKEN

    def close(self) -> None:
        self.work.close()
        self.regrouping.close()

    # --- the script's loop over a loader ------------------------------------------------------------------

    def enter_loop(self) -> None:
        self._is_catching_up = self._is_in_loop = True

    def leave_loop(self) -> None:
        self._is_in_loop, self.offered = False, None

    def forget_plan(self) -> None:
        """The next step is to be of other data than was planned."""
        if self.work.plan is not None:
            self.work.forget()

    # --- a micro-batch ------------------------------------------------------------------------------------

    def next_micro_batch(self) -> MicroBatch:
        """The micro-batch that this worker has to compute next; regroups first if it must, or leaves. A newcomer's
        first micro-batch is a rehearsal; it regroups after that."""
        self.regrouping.join()
        _ = self.work.gradients  # from here on, what is summed is fixed
        if self.rehearsal.is_due:
            return self.rehearsal.offer()
        self.regrouping.rehearsed_step = None
        self.regrouping.be_ready()
        if not self.is_whole:
            raise PermanentError(
                f"the update of step {self.step} broke off, and no peer holds the state", code="update-broke-off"
            )
        if self.work.plan is None:
            self.work.make_plan(self.world)
        todo = self.work.todo
        return MicroBatch(step=self.step, index=todo[0] if todo else 0, is_ghost=not todo)

    @property
    def todo(self) -> tuple[int, ...]:
        """The micro-batches of this step that this worker has still to compute."""
        return tuple(self.work.todo)

    @property
    def run(self) -> tuple[int, ...]:
        """The micro-batches that this worker gets in each further step, as long as the shares stay the same."""
        return self.work.run(self.world)

    @property
    def dealt(self) -> tuple[int, int]:
        """The generation, and how often shares have changed in it."""
        return self.world.generation, self.work.balance.num_deals

    def begin_micro_batch(self, micro_batch: MicroBatch, weight: float) -> None:
        self._check_next(micro_batch, weight)
        work, gradients = self.work, self.work.gradients
        self._is_catching_up, self.offered = micro_batch.is_rehearsal, None
        self._micro_batch, self._micro_batch_generation = micro_batch, self.world.generation
        self.regrouping.membership.is_in_step = not micro_batch.is_rehearsal
        self._decision = None
        self._are_buffers_kept = self._is_committed = False
        work.buffers.begin_micro_batch()
        seed_everything(micro_batch_seed(work.settings.seed, micro_batch.step, micro_batch.index))
        target = None
        if micro_batch.is_ghost:
            gradients.begin_ghost()
        else:
            work.weights[micro_batch.index] = weight
            target = gradients.begin(micro_batch.index, weight, is_last=self.is_last_micro_batch)
        if micro_batch.is_rehearsal:  # not part of a step, not even for observers
            self.rehearsal.begin()
            return
        self._write(COMPUTING, micro_batch.index)
        work.steadiness.micro_batch_begins()
        if self.is_last_micro_batch and self.world.size > 1:
            self._launch(target)

    def _check_next(self, micro_batch: MicroBatch, weight: float) -> None:
        if self._micro_batch is not None:
            raise UsageError(
                "a step inside a step", hint="leave `with trainer.step():` before the next", code="step-inside-step"
            )
        if weight < 0:
            raise UsageError(
                f"weight={weight}", hint="use the micro-batch's number of samples or tokens", code="weight-negative"
            )
        todo = self.work.todo
        is_mine = not todo if micro_batch.is_ghost else micro_batch.index in todo
        if micro_batch.step != self.step or not is_mine:
            raise UsageError(
                f"micro-batch {micro_batch.index} of step {micro_batch.step} is not this worker's to compute now",
                code="micro-batch-not-planned",
            )

    @property
    def is_last_micro_batch(self) -> bool:
        """Inside a micro-batch: this worker's last one in the step, or the step is committed already."""
        micro_batch, todo = self._micro_batch, self.work.todo
        if self.regrouping.is_rehearsing:
            return False
        if micro_batch is None or self._decision is not None or not todo:
            return micro_batch is not None
        return not micro_batch.is_ghost and todo == [micro_batch.index]

    @property
    def is_in_micro_batch(self) -> bool:
        return self._micro_batch is not None

    @property
    def is_void(self) -> bool:
        """Inside a micro-batch: the step has been summed, had no weight, and does not count."""
        return self._decision is not None and not self._counts

    def end_micro_batch(self) -> None:
        """The micro-batch's body came to its end."""
        if self.regrouping.is_rehearsing:
            self._leave_micro_batch()
            self.rehearsal.join()
            return
        if not self.is_last_micro_batch:
            self._micro_batch_done()
            self.work.gradients.end()
        elif self._decision is None:
            self.work.gradients.check_ended()
            self._complete_last_micro_batch()
        self._leave_micro_batch()

    def _leave_micro_batch(self) -> None:
        if self.regrouping.is_rehearsing:
            self.rehearsal.stop()
        self._micro_batch = None
        self.regrouping.membership.is_in_step = False
        self._write(OUTSIDE)

    def abandon_micro_batch(self, error: BaseException) -> None:
        """The micro-batch's body broke off. Micro-batches computed before stay; the step is done again by all."""
        micro_batch, work = self._micro_batch, self.work
        self._leave_micro_batch()
        self.regrouping.stop_job_for(error)
        work.gradients.abandon()
        if self._is_committed:
            self._break_off_after_commit(error)
            return
        if work.plan is None or self.world.generation != self._micro_batch_generation:
            return  # regrouped meanwhile: a new plan has been made
        is_summed = self._decision is not None
        must_report = work.sum.is_under_way or is_summed or isinstance(error, PeerLost)
        work.drop_sum()
        if self.world.size > 1 and must_report:
            # The others may have taken what this micro-batch has sent so far: they must not count on it.
            where = f"micro-batch {micro_batch.index if micro_batch else '?'} of step {self.step}"
            self.regrouping.report_broken(f"{type(error).__name__} in {where}")
        elif is_summed:
            work.gradients.clear()
        work.refresh_todo(self.world.rank)

    def _break_off_after_commit(self, error: BaseException) -> None:
        """This script may not have done what the others' do after the update, such as a scheduler's step: if it
        continues, it gets their state first. Alone, it keeps its own."""
        if self.world.size > 1:
            self.work.integrity = Integrity.UNFINISHED
            step = self.step - self._counts
            self.regrouping.report_broken(f"{type(error).__name__} after the update of step {step}")

    def _micro_batch_done(self) -> None:
        """The micro-batch's gradients are complete; idempotent."""
        micro_batch = self._micro_batch
        assert micro_batch is not None
        if micro_batch.index in self.work.todo and not micro_batch.is_ghost:
            self._keep_buffers()
            self.work.gradients.complete()
            self.work.todo.remove(micro_batch.index)

    # --- the sum ------------------------------------------------------------------------------------------

    def _launch(self, target: Target | None) -> None:
        """Send what is complete, and what becomes so while backward runs."""
        work, group = self.work, self.regrouping.group
        assert work.plan is not None and group is not None
        self._note = work.data.note()
        work.sum.launch(group, work.plan, target, header_of(work, self.world, self._note), work.buffers)

    def _backward_ended(self) -> None:
        self._keep_buffers()
        if self.is_last_micro_batch:
            self.work.steadiness.backward_ended()
            self._complete_last_micro_batch()
        if not self.is_last_micro_batch:
            self.work.buffers.restore()  # a model saved in the rest of the body is that of the last commit

    def _keep_buffers(self) -> None:
        """When a micro-batch's backward ends, regardless of what comes after it: so buffers do not depend on which
        micro-batch is the last."""
        micro_batch, work = self._micro_batch, self.work
        if micro_batch is None or micro_batch.is_ghost or self._are_buffers_kept:
            return
        if work.weights[micro_batch.index]:
            self._are_buffers_kept = True
            work.buffers.keep(micro_batch.index, work.held)

    def _complete_last_micro_batch(self) -> None:
        """All micro-batches are computed: wait for the sum, and through regroupings as long as nothing is left to
        compute.

        If a loss has left more to compute, this micro-batch is kept and was not the last one after all."""
        work = self.work
        self._micro_batch_done()
        work.note_computed(self.world.rank)
        self._write(WAITING)
        summed = self._await_sum_of_all()
        if summed is None:
            self._write(COMPUTING)
            return
        decision = decide_pulse(summed.pulses, summed.total)
        if decision.is_differing:
            self.regrouping.name_difference()
        self._decision = decision
        self._write(COMPUTING)  # the update: no worker waits for a peer in it
        if summed.buffers is not None:
            work.buffers.adopt(summed.buffers)
        else:
            work.buffers.restore()
        work.gradients.give_user_gradients(summed.means, decision.used)

    def _await_sum_of_all(self) -> Summed | None:
        """None: a loss has left more for this worker to compute."""
        work, step, num_loads = self.work, self.step, self.work.num_loads
        while True:
            try:
                with self.regrouping.stopping_all():
                    return self._finish_sum()
            except PeerLost as lost:
                self.regrouping.regroup(lost)
                if self.step != step:
                    raise PeerLost(f"{lost.message}; step {self.step} is next", code="step-overtaken") from lost
                if work.num_loads != num_loads:
                    raise PeerLost(
                        f"{lost.message}; what was computed here was of a lost generation", code="generation-overtaken"
                    ) from lost
                if work.todo:
                    return None
                if self.world.size > 1:
                    self._launch(None)

    def _finish_sum(self) -> Summed:
        work, regrouping = self.work, self.regrouping
        if self.world.size == 1:
            self._note = work.data.note()
            total = in_order(work.weights[micro_batch] for micro_batch in range(work.num_micro_batches))
            return work.sum.finish_alone(pulse_of(work, regrouping, self._note), total, work.buffers)
        return work.sum.finish(is_closed=regrouping.is_closed, pulse=pulse_of(work, regrouping, self._note))

    # --- the update ---------------------------------------------------------------------------------------

    def await_sum(self) -> bool:
        """In the last micro-batch: whether the gradients are the mean over all now. False: a peer was lost, and this
        micro-batch was not the last one after all."""
        if self._decision is None:
            self.work.gradients.check_ended()
            self._complete_last_micro_batch()  # backward touched no parameter of the registered models
        return self._decision is not None

    def update(self, apply: Callable[[], Any], *, is_final: bool) -> Any:
        """Run one optimizer's step on the summed gradients; the final one commits the step."""
        if not self.await_sum():
            return None
        self.work.integrity = Integrity.BROKEN  # until the commit
        result = apply() if self._counts else None
        if is_final:
            self.commit()
        return result

    @property
    def _counts(self) -> bool:
        assert self._decision is not None
        return self.work.settings.counts_empty_steps or not self._decision.is_empty

    def commit(self) -> None:
        decision, work, regrouping = self._decision, self.work, self.regrouping
        assert decision is not None
        counts = self._counts
        regrouping.membership.is_in_step = False
        self._is_committed = True
        work.commit(counts=counts, must_check=decision.must_check and self.world.size > 1)
        work.balance.committed(decision, self.world, self.step)
        if counts:
            work.data.committed(decision)
        else:
            work.data.passed(decision)
        self._board.note_state_bytes(work.steadiness.state_bytes)
        self._write(OUTSIDE)
        work.agreed = Agreed() if counts else work.agreed.passed()
        if counts:
            regrouping.membership.hold(regrouping.settled, self.step, regrouping.max_workers)
            emit("step.committed", step=self.step, generation=self.world.generation, size=self.world.size)

    def after_commit(self) -> None:
        """At the end of the micro-batch that committed: do what the pulse decided."""
        decision = self._decision
        if decision is None or not decision.must_regroup or self.work.todo:
            return
        if self.world.rank in decision.leavers:
            self.regrouping.request_leave()
        else:
            self.regrouping.arrive()

    # --- with all others ----------------------------------------------------------------------------------

    def reduce(self, value: float, weight: float) -> float:
        """The weighted mean over all workers; a worker that missed it gets its own value."""
        said = self.gather([value, weight])
        return value if said is None else weighted_mean(said)

    def gather(self, value: Any, name: str | None = None) -> list[Any] | None:
        """What all workers say here, plain data by rank, retried when a peer is lost.

        `name`: of the question, for workers that were brought to this step by a peer and may ask only some of them.

        None: this worker missed the answer, because it was taken to a later step while it waited, or because it passes
        what the others have done already."""
        if self._is_amid_step:
            raise UsageError(
                f"reduce() in the middle of step {self.step}: workers have different numbers of micro-batches, and "
                "some would wait for the others forever",
                hint="ask between epochs; or once per step, after it: `if trainer.num_steps > before:`",
                code="reduce-amid-step",
            )
        return None if self._is_catching_up else self.regrouping.agree(value, name)

    @property
    def _is_amid_step(self) -> bool:
        if self.regrouping.is_rehearsing:
            return False
        if self.offered is not None or self.is_in_micro_batch:
            return self._decision is None or not self.is_in_micro_batch
        return self._is_in_loop and bool(self.work.todo) and not self.work.void.issuperset(self.work.held)

    def died_of(self, error: BaseException) -> None:
        """The script has not handled it: stop the job if it concerns all, and let the agent know if it is the
        script's own."""
        self.regrouping.stop_job_for(error)
        if isinstance(error, Exception) and not isinstance(error, EverstepError):
            self._board.note_raised()

    def _write(self, phase: str, micro_batch: int = -1) -> None:
        self._board.write(step=self.step, micro_batch=micro_batch, phase=phase)
