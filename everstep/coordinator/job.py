"""One job at the edge: holds its roster, keeps what changes, wakes who waits.

A change is made at once in memory, kept in the store together with what follows from it, and only then reported: all
replies are made from the roster as it was kept last. One task per job decides and keeps; calls only change and wait.
Decisions are taken when something happened or a deadline has come, never by polling."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from everstep import wire
from everstep.coordinator.clock import Now
from everstep.coordinator.datasets import JobDatasets
from everstep.coordinator.job_band import JobBand
from everstep.coordinator.job_orders import JobOrders
from everstep.coordinator.roster import changes, replies
from everstep.coordinator.roster.advance import advance, examine
from everstep.coordinator.roster.facts import (
    ALIVE,
    GONE,
    LEFT,
    SENT,
    NodeSign,
    Roster,
    Sign,
    Worker,
    has_same_facts,
)
from everstep.coordinator.roster.gathering import gathers_until
from everstep.coordinator.roster.health import CUT_S
from everstep.coordinator.roster.node_gone import node_gone
from everstep.coordinator.roster.reopening import reopen
from everstep.coordinator.roster_events import emit_changes
from everstep.coordinator.shards.ledger import Rows
from everstep.coordinator.signs import LONGEST_WATCH_S, WorkerSigns, report_interval_s
from everstep.coordinator.store.store import Store
from everstep.coordinator.turns import Turns
from everstep.coordinator.vital_tasks import die_if_failed
from everstep.coordinator.waiters import Bell
from everstep.errors import Refused
from everstep.storage.database import StoreError
from everstep.wire.limits import check_nodes, check_workers

log = logging.getLogger(__name__)

LONGEST_HOLD_S = 1.0
LONGEST_ARRIVE_S = 10.0  # for a worker that is vouched for
AT_LEAST = 0.75  # part of a hold, at random: so thousands of calls that were answered together do not return together
STORE_PAUSE_S = 0.5
BRIEF_S = 0.001
LONGEST_REST_S = 0.25


class CoordinatedJob:
    def __init__(
        self,
        roster: Roster,
        store: Store,
        ledgers: Iterable[Rows] = (),
        *,
        grace_s: float = 0.0,
        now: Now = time.monotonic,
        was_away: Callable[[], bool] = lambda: False,
        turns: Turns | None = None,
        band: JobBand | None = None,
        on_marks: Callable[[str, Sequence[wire.Mark]], None] = lambda _job, _marks: None,
    ) -> None:
        self._now, self._was_away = now, was_away
        self.band, self._on_marks = band or JobBand(), on_marks
        turns = turns or Turns()
        self._news, self._forming, self._leaving, self._orders = Bell(turns), Bell(turns), Bell(turns), Bell(turns)
        self.roster = roster  # as it is
        self.kept = roster  # as it was kept last, and reported
        signs = {
            name: Sign(alive_at=self._now() + grace_s, told_at=0.0)
            for name, worker in roster.workers.items()
            if worker.status == ALIVE and worker.incarnation
        }
        self.signs = WorkerSigns(signs, roster.policy.lease_s, self._now, self._news.ring_for)
        self.node_signs = {name: NodeSign(alive_at=self._now() + grace_s) for name in roster.nodes}
        self.reason = roster.generation.reason
        self._store = store
        self._num_changes = self._num_kept = 0
        self._is_closed = False
        self._until_kept: list[tuple[int, asyncio.Future[None]]] = []
        self._has_changed = asyncio.Event()
        self._look_at: float | None = 0.0
        self._examine_at: float | None = 0.0
        # Starts from the time of day: a number from before a restart must not be mistaken for one of now.
        self._tell(replies.notice_of(roster, seen=time.time_ns() // 1000))
        self._job_orders = JobOrders(roster, self._orders, self._notice.watched.seen)
        self._views: dict[bool, tuple[Roster, str, int, bytes]] = {}  # by whether they are brief, and of which state
        self._formed_replies = replies.FormedReplies(roster.generation)
        self.shards = JobDatasets(roster, ledgers, store, self.stop, self._lessee, grace_s=grace_s, now=now)
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(die_if_failed)

    @property
    def is_done(self) -> bool:
        """Over, all of it kept, and no node left that has to learn of it."""
        is_any_present = any(node.is_present for node in self.roster.nodes.values())
        return self.kept.is_over and self.kept is self.roster and not self._until_kept and not is_any_present

    async def close(self) -> None:
        self._is_closed = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._refuse_waiting("the job has left the coordinator's memory; ask again", code="job-closed")
        await self.shards.close()
        self.signs.close()
        self.let_go()

    def let_go(self) -> None:
        """Answer the calls that are held, because the coordinator stops."""
        self.shards.let_go()
        for bell in (self._news, self._forming, self._leaving, self._orders):
            bell.close()

    # --- the calls of people and agents ---

    def view(self, *, is_brief: bool = False) -> wire.JobView:
        return replies.job_view(self.kept, self.signs.all, self.reason, is_brief=is_brief)

    def view_json(self, *, is_brief: bool = False) -> bytes:
        """Made again only if its content has changed."""
        num_steps = 0 if is_brief else self.signs.num_steps
        roster, reason, seen, view = self._views.get(is_brief, (None, "", 0, b""))
        if roster is not self.kept or (reason, seen) != (self.reason, num_steps):
            view = wire.to_json(self.view(is_brief=is_brief))
            self._views[is_brief] = (self.kept, self.reason, num_steps, view)
        return view

    def summary(self) -> wire.JobSummary:
        """As a row of the list of jobs; the same value as long as nothing changes."""
        return self.band.summary(self.kept, self.signs, self.reason)

    async def stop(self, reason: str) -> None:
        await self._keep(changes.stop(self.roster, reason))

    async def reopen(self, reason: str) -> None:
        await self._keep(reopen(self.roster, reason, self._now()))

    async def reserve(self, request: wire.ReserveWorker) -> wire.ReservedWorker:
        roster, name = changes.reserve(self.roster, request)
        check_workers(len(roster.workers))
        is_restart = changes.counts(roster, request)
        await self._keep(roster)
        return wire.ReservedWorker(worker=name, num_restarts=roster.num_restarts, is_restart=is_restart)

    async def report(self, agent: str, report: wire.AgentReport) -> bytes:
        for state in report.workers:
            self.roster.worker(state.worker)  # refuses an unknown worker
        if agent not in self.roster.nodes:
            check_nodes(len(self.roster.nodes) + 1, len(self.roster.workers) + report.num_workers)
        now = self._now()
        is_understood = self.signs.hear_agent(agent, report, self.roster.generation.number, now)
        self.node_signs[agent] = NodeSign(alive_at=now, silent_since=now - report.silent_s)
        if (roster := changes.node_reported(self.roster, agent, report, now)) is not self.roster:
            await self._keep(roster)  # else there is nothing to keep: others' changes need not hold it up
        report_s = report_interval_s(len(self.kept.nodes), self.roster.policy)
        deadline = now + min(report.wait_s, report_s) * random.uniform(AT_LEAST, 1.0)
        orders, told = self._job_orders.of(agent, report.incarnation), self._job_orders.told(agent)
        while is_understood and orders.says_the_same_as(told) and self._now() < deadline:
            await self._orders.wait(deadline - self._now(), agent)
            orders = self._job_orders.of(agent, report.incarnation)
        return self._job_orders.tell(agent, orders, report.peers_seen, report_s, wants_all=not is_understood)

    def may_be_gone(self, agent: str, report: wire.AgentReport, *, is_cut: bool = False) -> None:
        """An agent's connection ended between two of its reports: it ended, or opens another for the next one. Or it
        was cut before the agent was answered: it ended, or calls again at once. If the coordinator was away and did
        not answer, the agent's lease decides."""
        node = self.roster.nodes.get(agent)
        if node is None or node.incarnation != report.incarnation or self._was_away():
            return
        if is_cut:
            now = self._now()
            self.node_signs[agent] = replace(self.node_signs[agent], alive_at=now, is_cut=True)
            self._examine_at = min(self._examine_at or now + CUT_S, now + CUT_S)
        self._change(changes.suspect_node(self.roster, agent))
        self._has_changed.set()

    async def agent_leaves(self, agent: str, message: wire.AgentLeave) -> None:
        node = self.roster.nodes.get(agent)
        if node is not None and node.incarnation == message.incarnation:
            now = self._now()
            self.signs.forget(agent)
            await self._keep(changes.node_away(self.roster, agent, message.reason, now, has_left=True))

    async def node_gone(self, agent: str, reason: str) -> None:
        if (roster := node_gone(self.roster, agent, reason, self._now())) is not self.roster:
            await self._keep(roster)

    async def exited(self, name: str, end: wire.WorkerExit) -> None:
        await self._keep(changes.exited(self.roster, name, end, self._now()))

    # --- the calls of workers ---

    async def announce(self, name: str, message: wire.Announce) -> wire.Announced:
        roster, now = self.roster, self._now()
        is_new = roster.worker(name).incarnation != message.incarnation
        roster = changes.announce(roster, name, message, now)
        if is_new:
            self.signs.begin(name, now)
        self.signs.prove_alive(name, now)
        await self._keep(roster)
        signs = self.signs.all
        told = [signs[member] for member in self.roster.generation.ranks if member in signs]
        return wire.Announced(
            is_newcomer=_is_newcomer(self.roster, name),
            policy=self.roster.policy,
            step=max((sign.step for sign in told), default=0),
            state_bytes=max((sign.state_bytes for sign in told), default=0),
        )

    async def watch(self, name: str, message: wire.Watch) -> bytes:
        roster, now = self.roster, self._now()
        worker = self._caller(name, message.incarnation)
        number = roster.generation.number
        if message.generation > number:
            raise Refused(
                f"generation {message.generation} does not exist; the latest is {number}", code="watch-generation-ahead"
            )
        self.signs.hear_worker(name, message, number, now)
        if message.seen == self._notice.watched.seen:
            await self._hold_watch(worker, message)
        return self._watched_closed if self._notice.is_closed_for(message.generation) else self._watched_open

    async def arrive(self, name: str, message: wire.Arrive) -> bytes:
        now = self._now()
        self._stand_ready(name, message, now)
        self.signs.prove_alive(name, now)
        deadline = now + max(self._hold_s(), self.signs.is_vouched(name) * min(message.wait_s, LONGEST_ARRIVE_S))
        while not (self.kept.is_over or self._is_placed(name, message.generation)):
            if self._now() >= deadline:
                reason = replies.why_waiting(self.kept, name) or self.reason
                return wire.to_json(wire.Arrived(is_formed=False, is_stopped=False, reason=reason))
            await self._forming.wait(deadline - self._now())
            # A generation may have been formed and closed again before this worker could be answered.
            self._stand_ready(name, message, now)
        if self.kept.is_over:
            over = wire.Arrived(
                is_formed=False, is_stopped=True, is_finished=self.kept.is_finished, reason=self.kept.reason
            )
            return wire.to_json(over)
        self.signs.place(name, self.kept.workers[name].agent, self.kept.generation.number)
        return self._formed_replies.of(name)

    async def broken(self, name: str, message: wire.Broken) -> None:
        await self._keep(changes.broken(self.roster, name, message, self._now()))

    async def settled(self, name: str, message: wire.Settled) -> None:
        await self._keep(changes.settled(self.roster, name, message))

    async def leave(self, name: str, message: wire.Leave) -> wire.Left:
        now = self._now()
        roster = changes.leave(self.roster, name, message)
        self.band.hear(name, message.step)
        self.signs.prove_alive(name, now)
        self._change(roster)
        deadline = now + self._hold_s()
        while (left := self._left(name, message.generation)) is None and self._now() < deadline:
            await self._leaving.wait(deadline - self._now())
        return left or wire.Left(is_released=False, is_closed=False, reason=self.reason)

    # --- what the calls are made of ---

    def _caller(self, name: str, incarnation: str) -> Worker:
        """The calling worker. A released one may not know it yet: its last heartbeats are accepted."""
        worker = self.roster.worker(name)
        if worker.status in (LEFT, SENT) and worker.incarnation == incarnation:
            return worker
        return changes.known(self.roster, name, incarnation)

    def _lessee(self, name: str, incarnation: str) -> Worker:
        """The worker that asks for samples, which proves that it is alive."""
        worker = self.roster.worker(name)
        if worker.incarnation:  # else it is a classic one: known only to have been started
            worker = changes.known(self.roster, name, incarnation)
            self.signs.prove_alive(name, self._now())
        elif worker.status != ALIVE:
            raise Refused(f"{name} is {worker.status}: {worker.reason}", code="lease-worker-gone")
        return worker

    def _stand_ready(self, name: str, message: wire.Arrive, now: float) -> None:
        self.band.hear(name, message.step)
        if self.roster.is_over:
            self._caller(name, message.incarnation)
        else:
            self._change(changes.arrive(self.roster, name, message, now))

    async def _hold_watch(self, worker: Worker, message: wire.Watch) -> None:
        """Hold it for long if an agent vouches for the worker, and it asks about the generation it was placed in."""
        policy, sign = self.roster.policy, self.signs.all[worker.worker]
        is_long = sign.is_vouched and sign.placed == message.generation
        hold_s = max(min(policy.heartbeat_s, policy.lease_s / 2), is_long * min(message.wait_s, LONGEST_WATCH_S))
        sign.num_held += is_long
        try:
            await self._news.wait(hold_s * random.uniform(AT_LEAST, 1.0), worker.agent)
        finally:
            sign.num_held -= is_long

    def _hold_s(self) -> float:
        """A call is proof of life only when it comes in, so it is never held for long."""
        return min(LONGEST_HOLD_S, self.roster.policy.lease_s / 3)

    def _is_placed(self, name: str, after: int) -> bool:
        """Whether a generation that was kept, and is still open, has a place for this worker."""
        return self.kept.generation is self.roster.generation and changes.is_formed(self.kept, name, after)

    def _left(self, name: str, generation: int) -> wire.Left | None:
        kept = self.kept
        if kept.workers[name].status in (LEFT, SENT) or kept.is_over:
            reason = kept.reason if kept.is_over else kept.workers[name].reason
            return wire.Left(is_released=True, is_closed=False, reason=reason)
        if name in kept.recalled or changes.is_formed(kept, name, generation):
            return wire.Left(is_released=False, is_closed=True, reason=f"needed again: {self.reason}")
        return None

    # --- changing, deciding, keeping, telling ---

    def _change(self, roster: Roster) -> None:
        if roster is not self.roster:
            self.roster = roster
            self._num_changes += 1
            self._has_changed.set()

    async def _keep(self, roster: Roster) -> None:
        """Change, and return when the change is in the store. Also waits for earlier changes, which it may repeat."""
        self._change(roster)
        if self._is_closed:
            raise StoreError("the job has left the coordinator's memory; ask again", code="job-closed")
        if self._num_kept < self._num_changes:
            kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._until_kept.append((self._num_changes, kept))
            await kept

    async def _run(self) -> None:
        while True:
            await self._until_due()
            started = time.thread_time()
            self._has_changed.clear()
            num_changes = self._num_changes
            self._decide(self._now())
            if self._gathers():
                continue
            roster = self.roster
            marks = self.band.follow(self.kept, roster, self.signs.all)
            took_s = time.thread_time() - started
            if not has_same_facts(self.kept, roster):
                await self._save_stubbornly(roster, marks)
            started = time.thread_time()
            self.band.keep(marks)
            self._tell_all(roster, num_changes)
            self._on_marks(roster.job, marks)
            took_s += time.thread_time() - started
            if took_s > BRIEF_S:
                # A round for thousands takes long: leave nearly all of the time to those who have yet to arrive.
                await asyncio.sleep(min(10 * took_s, LONGEST_REST_S))

    def _gathers(self) -> bool:
        """Members arrive, and no one waits for anything else to be kept."""
        until = gathers_until(self.kept, self.roster)
        if until is None or self._until_kept or until <= self._now():
            return False
        self._look_at = min(until, until if self._look_at is None else self._look_at)
        return True

    async def _until_due(self) -> None:
        looks = [look for look in (self._look_at, self._examine_at) if look is not None]
        due_s = max(0.0, min(looks) - self._now()) if looks else None
        # Not by asyncio.wait_for: before Python 3.12, a change at the very moment of a cancellation swallows that.
        timer = None if due_s is None else asyncio.get_running_loop().call_later(due_s, self._has_changed.set)
        try:
            await self._has_changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _decide(self, now: float) -> None:
        if self._examine_at is not None and self._examine_at <= now:
            self.roster, self._examine_at = examine(self.roster, self.signs.all, self.node_signs, now)
        before, policy = self.roster, self.roster.policy
        self.roster, reason, self._look_at = advance(self.roster, self.signs.all, now)
        has_begun = self.roster.generation is not before.generation or self.roster.attempt is not before.attempt
        if has_begun or self._examine_at is None:
            soon = now + min(policy.stall_s, policy.hang_s, policy.lease_s, policy.silence_s or policy.lease_s)
            is_awaited = not self.roster.is_over or any(node.is_present for node in self.roster.nodes.values())
            self._examine_at = min(self._examine_at or soon, soon) if is_awaited else None
        if reason != self.reason:
            self.reason = reason
            log.info("%s: %s", self.roster.job, reason)

    async def _save_stubbornly(self, roster: Roster, marks: Sequence[wire.Mark]) -> None:
        """Nothing is decided on top of what could not be kept. Waiting callers get an error and ask again."""
        while True:
            try:
                return await self._store.in_thread(lambda: self._store.save(self.kept, roster, marks))
            except StoreError as error:
                log.error("%s: %s", self.roster.job, error)
                self._refuse_waiting(error.message, code="store-failed")
                await asyncio.sleep(STORE_PAUSE_S)

    def _refuse_waiting(self, problem: str, *, code: str) -> None:
        for _, future in self._until_kept:
            if not future.done():
                future.set_exception(StoreError(problem, code=code))
        self._until_kept.clear()

    def _tell_all(self, roster: Roster, num_changes: int) -> None:
        before, self.kept, self._num_kept = self.kept, roster, num_changes
        if roster.generation is not before.generation:
            self._formed_replies = replies.FormedReplies(roster.generation)
            self._forming.ring()
        if roster.is_over and not before.is_over:
            self._forming.ring()
        self._job_orders.follow(before, roster)
        if roster is not before:
            self._leaving.ring()
            self.shards.look(roster)
        notice = replies.notice_of(roster, self._notice.watched.seen + 1)
        if not notice.says_the_same_as(self._notice):
            self._tell(notice)
            self._news.ring()
        self._answer_kept()
        emit_changes(before, roster)

    def _tell(self, notice: replies.Notice) -> None:
        self._notice = notice
        self._watched_open = notice.encode(is_closed=False)
        self._watched_closed = notice.encode(is_closed=True)

    def _answer_kept(self) -> None:
        waiting, self._until_kept = self._until_kept, []
        for num_changes, future in waiting:
            if num_changes > self._num_kept:
                self._until_kept.append((num_changes, future))
            elif not future.done():
                future.set_result(None)


def _is_newcomer(roster: Roster, name: str) -> bool:
    """Whether training is under way: a generation was formed, and somebody of it may still be there."""
    if roster.generation.number == 0:
        return False
    others = [each for each in roster.workers.values() if each.worker != name and each.status not in GONE]
    return any(not each.is_stale and (each.settled or roster.is_member(each.worker)) for each in others)
