"""The datasets of one job at the edge: takes reports, gives leases, wakes who waits; durable before it answers.

A change is made at once in memory and answered when it is in the store. One task keeps what has changed: while one
transaction is being flushed, the changes of all calls that come in meanwhile gather for the next, so that thousands
of calls a second cost some dozen flushes. Who finds nothing free waits in line, and is served when something is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from everstep import wire
from everstep.coordinator.clock import Now
from everstep.coordinator.roster.facts import ID, Roster, Worker
from everstep.coordinator.shards.leasing import Holder, Key, LeaseFacts, Leasing, decide_lease, decide_release
from everstep.coordinator.shards.ledger import Leftover, Rows, ShardLedger, check_same
from everstep.coordinator.store.store import Store
from everstep.coordinator.vital_tasks import die_if_failed
from everstep.errors import UNKNOWN, Refused
from everstep.events import emit
from everstep.ranges import size
from everstep.storage.database import StoreError
from everstep.wire.limits import check_datasets

log = logging.getLogger(__name__)

Stop = Callable[[str], Awaitable[None]]
Lessee = Callable[[str, str], Worker]  # by worker and incarnation; refuses those that are not of the job

LONGEST_HOLD_S = 1.0
STORE_PAUSE_S = 0.5

_LEASED = TypeAdapter(wire.Leased)


@dataclass(eq=False, slots=True)
class _Waiter:
    """A call that is held."""

    key: Key
    request: int
    called: asyncio.Future[None]


class JobDatasets:
    def __init__(
        self,
        roster: Roster,
        ledgers: Iterable[Rows],
        store: Store,
        stop: Stop,
        lessee: Lessee,
        *,
        grace_s: float = 0.0,
        now: Now = time.monotonic,
    ) -> None:
        self._now = now
        began = now()
        self._roster = roster
        self._store, self._stop, self._lessee = store, stop, lessee
        self._ledgers = {rows.dataset: ShardLedger(rows, began) for rows in ledgers}
        self._deadlines: dict[str, dict[Key, float]] = {name: {} for name in self._ledgers}
        self._lines: dict[str, list[_Waiter]] = {name: [] for name in self._ledgers}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._touched: set[str] = set()
        self._until_kept: list[asyncio.Future[None]] = []
        self._has_changed = asyncio.Event()
        self._is_keeping = False
        self._task: asyncio.Task[None] | None = None
        for name, ledger in self._ledgers.items():
            for key in ledger.holders:
                self._renew(name, key, began + grace_s)
        self.look(roster)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for timer in self._timers.values():
            timer.cancel()
        self.let_go()

    def let_go(self) -> None:
        """Answer the calls that are held."""
        for line in self._lines.values():
            for waiter in line:
                _wake(waiter.called)

    # --- the calls of people ---

    async def register(self, name: str, spec: wire.DatasetSpec) -> wire.DatasetView:
        if not ID.fullmatch(name):
            raise Refused(
                "a dataset's name is up to 128 letters, digits, dots, dashes and underscores",
                status=422,
                code="dataset-name-invalid",
            )
        spec = replace(
            spec, minibatches_per_shard=spec.minibatches_per_shard or self._roster.policy.minibatches_per_shard
        )
        if known := self._ledgers.get(name):
            check_same(name, spec, known.spec)
        else:
            check_datasets(len(self._ledgers) + 1)
            self._ledgers[name] = ShardLedger.new(name, spec)
            self._deadlines[name], self._lines[name] = {}, []
            self._touch(name)
        await self._kept()
        return self._view(name)

    async def views(self) -> wire.Datasets:
        views = [self._view(name) for name in self._ledgers]
        await self._kept()
        return wire.Datasets(datasets=views)

    def _view(self, name: str) -> wire.DatasetView:
        ledger = self._ledger(name)
        return wire.DatasetView(
            dataset=name,
            spec=ledger.spec,
            done=ledger.next - ledger.num_out - size(ledger.skipped()),
            is_end=ledger.is_end,
            epochs=ledger.epochs(),
            bad_shards=list(ledger.bad.values()),
            reason=decide_lease(self._facts(name, ("", "")), self._now()).reason,
        )

    async def checkpoint(self, name: str) -> wire.ShardCheckpoint:
        checkpoint = self._ledger(name).checkpoint()
        await self._kept()
        return checkpoint

    async def restore(self, name: str, message: wire.RestoreShards) -> wire.DatasetView:
        ledger = self._ledger(name)
        if ledger.restored != message.request:
            ledger.restore(message.request, message.checkpoint)
            emit("dataset.restored", job=self._roster.job, dataset=name, done=size(ledger.done()))
            self._touch(name)
            self._serve(name)
        await self._kept()
        return self._view(name)

    # --- the call of workers ---

    async def lease(self, caller: str, message: wire.LeaseRequest) -> bytes:
        worker = self._lessee(caller, message.incarnation)
        name, ledger, now = message.dataset, self._ledger(message.dataset), self._now()
        key = (caller, message.incarnation)
        self._check(ledger, key, worker, message)
        if message.request > ledger.holder(key).request:
            self._take_in(ledger, key, message, now)
        self._renew(name, key, now)
        self._leave_line(name, key)
        if message.wants and message.batch_s and key in ledger.holders:
            ledger.pace(key, message.batch_s, now)
        reason = self._grant(name, key, message, now)
        if message.wants and not self._has_answer(ledger, key, message):
            reason = await self._in_line(name, key, message, now)
        answer = self._answer(ledger, key, message.request, reason)
        await self._kept()
        if (fatal := ledger.fatal(self._roster.policy.shard_failures)) and not self._roster.is_over:
            await self._stop(fatal)
        return answer

    def look(self, roster: Roster) -> None:
        """The roster has changed: what lost workers hold is free, or will be when the others have said what they know.

        Only what was kept of the roster may be shown here: a lease that is given on account of it will be kept too."""
        self._roster = roster
        for name, ledger in self._ledgers.items():
            self._release(name, ledger)

    # --- what the call is made of ---

    def _ledger(self, name: str) -> ShardLedger:
        if found := self._ledgers.get(name):
            return found
        raise Refused(f"job {self._roster.job} has no dataset {name[:80]}", status=UNKNOWN, code="dataset-unknown")

    def _check(self, ledger: ShardLedger, key: Key, worker: Worker, message: wire.LeaseRequest) -> None:
        """Refuse calls that are late or from an unknown process, before anything is changed."""
        latest, known = self._roster.generation.number, ledger.holders.get(key)
        is_repeated = known is not None and message.request == known.request
        if message.generation > latest:
            why = f"generation {message.generation} does not exist; the latest is {latest}"
            code = "lease-generation-ahead"
        elif known is not None and message.request < known.request:
            why, code = f"request {message.request} comes after request {known.request}", "lease-request-old"
        elif message.done and 0 < message.generation < ledger.settled and not is_repeated:
            why = f"generation {ledger.settled} has said what was committed before it"
            why, code = f"generation {message.generation} is over: {why}", "lease-generation-over"
        elif known is None and not worker.incarnation and any(name == key[0] for name, _ in ledger.holders):
            why, code = (
                f"{key[0]} is another process: one process of a worker takes samples",
                "lease-of-another-process",
            )
        else:
            return
        raise Refused(why, code=code)

    def _take_in(self, ledger: ShardLedger, key: Key, message: wire.LeaseRequest, now: float) -> None:
        if not _says_something(ledger.holders.get(key), message):
            return
        limit, may_speak = self._roster.policy.shard_failures, message.generation > 0
        left_over: list[Leftover] = []
        for part in message.done:
            left_over += ledger.report(part, key, now, may_speak_for_others=may_speak)
        for part in message.returned:
            left_over += ledger.take_back(part, key)
        for failed in message.failed:
            left_over += ledger.fail(failed, key, limit)
            self._tell_failure(ledger, failed)
        ledger.heard(key, message.request, message.generation, ledger.explain(left_over))
        self._touch(ledger.dataset)
        if message.settles and message.generation > ledger.settled:
            ledger.settled = message.generation
            self._release(ledger.dataset, ledger)
        self._serve(ledger.dataset)

    def _grant(self, name: str, key: Key, message: wire.LeaseRequest, now: float) -> str:
        """Give as many leases as are wanted and there are; why there are none, if so.

        A call does not overtake waiting ones, unless those are spared."""
        if message.wants and self._lines[name]:
            self._serve(name)
        for _ in range(message.wants - _num_granted(self._ledgers[name], key, message.request)):
            decision = self._decide(name, key, now)
            if not self._carry_out(name, key, message.request, decision, now):
                return decision.reason
        return ""

    def _facts(self, name: str, key: Key) -> LeaseFacts:
        return self._ledgers[name].facts(key, self._deadlines[name], self._roster.policy.straggler_factor)

    def _decide(self, name: str, key: Key, now: float) -> Leasing:
        """Decide, and do at once what must be done before the rest can be decided."""
        while (decision := decide_lease(self._facts(name, key), now)).silent is not None:
            self._free(name, decision.silent, decision.reason)
        return decision

    def _carry_out(self, name: str, key: Key, request: int, decision: Leasing, now: float) -> bool:
        """Whether a lease was given."""
        ledger = self._ledgers[name]
        if decision.again is not None:
            ledger.grant_again(decision.again, key, request, now, decision.most)
        elif decision.fresh is not None:
            ledger.grant_fresh(decision.fresh, key, request, now)
        else:
            if decision.asked is not None:
                (worker, _), lease = decision.asked
                ledger.ask_back(*decision.asked)
                emit("lease.asked", job=self._roster.job, worker=worker, dataset=name, lease=lease)
            return False
        self._touch(name)
        return True

    def _has_answer(self, ledger: ShardLedger, key: Key, message: wire.LeaseRequest) -> bool:
        return ledger.is_end or self._roster.is_over or _num_granted(ledger, key, message.request) > 0

    async def _in_line(self, name: str, key: Key, message: wire.LeaseRequest, now: float) -> str:
        """Wait for something to be free, the end, a deadline, or a later call of the same process."""
        await self._kept()  # what was reported is safe, however long the rest takes
        if key not in self._ledgers[name].holders:
            return "this process was declared lost meanwhile"
        loop = asyncio.get_running_loop()
        waiter = _Waiter(key, message.request, loop.create_future())
        self._lines[name].append(waiter)
        self._serve(name)
        timer = loop.call_later(now + min(message.wait_s, LONGEST_HOLD_S) - self._now(), _wake, waiter.called)
        try:
            await waiter.called
        finally:
            timer.cancel()
            if waiter in self._lines[name]:
                self._lines[name].remove(waiter)
        if _num_granted(self._ledgers[name], key, message.request):
            return ""
        return decide_lease(self._facts(name, key), self._now()).reason

    def _serve(self, name: str) -> None:
        """Give what is free to those who wait, first come, first served; look again when a deadline comes."""
        line, now, loop = self._lines[name], self._now(), asyncio.get_running_loop()
        if timer := self._timers.pop(name, None):
            timer.cancel()
        for waiter in list(line):
            decision = self._decide(name, waiter.key, now)
            if waiter not in line:
                continue
            is_served = self._carry_out(name, waiter.key, waiter.request, decision, now)
            if is_served or decision.is_end or self._roster.is_over:
                line.remove(waiter)
                _wake(waiter.called)
            elif not decision.is_spared:
                if decision.next_look is not None:
                    self._timers[name] = loop.call_later(decision.next_look - now, self._serve, name)
                break

    def _leave_line(self, name: str, key: Key) -> None:
        """A call of this process is still held, which has made another or is gone: it is answered now, with nothing."""
        for waiter in [each for each in self._lines[name] if each.key == key]:
            self._lines[name].remove(waiter)
            _wake(waiter.called)

    def _answer(self, ledger: ShardLedger, key: Key, request: int, reason: str) -> bytes:
        holder, roster = ledger.holder(key), self._roster
        leased = wire.Leased(
            leases=[
                wire.Lease(
                    lease=each.lease,
                    epoch=ledger.epoch(each.start),
                    start=each.start,
                    stop=each.stop,
                    left=[list(left) for left in each.left],
                )
                for each in holder.leases.values()
            ],
            refused=list(holder.refused) if holder.request == request else [],
            give_back=[each.lease for each in holder.leases.values() if each.is_asked],
            is_end=ledger.is_end,
            reason=roster.reason if roster.is_over else reason,
            is_stopped=roster.is_over,
        )
        return _LEASED.dump_json(leased)

    # --- life and death ---

    def _renew(self, name: str, key: Key, now: float) -> None:
        """Those who have announced themselves are watched by the roster; others live by their calls."""
        worker = self._roster.workers.get(key[0])
        if worker is None or worker.incarnation:
            self._deadlines[name].pop(key, None)
        else:
            self._deadlines[name][key] = now + self._roster.policy.shard_lease_s

    def _release(self, name: str, ledger: ShardLedger) -> None:
        is_free = self._roster.is_over
        for key, holder in list(ledger.holders.items()):
            if (worker := self._roster.workers.get(key[0])) and worker.incarnation:
                self._deadlines[name].pop(key, None)
            release = decide_release(holder, self._roster, ledger.settled)
            if release.is_released:
                self._free(name, key, release.reason)
                is_free = True
            elif release.is_gone:
                ledger.pending[key] = release.reason
                self._leave_line(name, key)
            else:
                ledger.pending.pop(key, None)
        if is_free:
            self._serve(name)

    def _free(self, name: str, key: Key, reason: str) -> None:
        freed = self._ledgers[name].free(key)
        self._leave_line(name, key)
        self._deadlines[name].pop(key, None)
        self._touch(name)
        if freed:
            log.info("%s: dataset %s: %d samples will be leased again: %s", self._roster.job, name, size(freed), reason)
            emit("lease.freed", job=self._roster.job, worker=key[0], dataset=name, ranges=freed, reason=reason)

    def _tell_failure(self, ledger: ShardLedger, failed: wire.FailedPart) -> None:
        job, shard = self._roster.job, ledger.named(failed.start)
        emit("shard.failed", job=job, dataset=ledger.dataset, shard=shard, reason=failed.reason)
        log.warning("%s: %s failed: %s", job, shard, failed.reason)

    # --- keeping ---

    def _touch(self, name: str) -> None:
        self._touched.add(name)
        self._has_changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(die_if_failed)

    async def _kept(self) -> None:
        """Return when all that has been changed so far is in the store."""
        if self._touched or self._is_keeping:
            kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._until_kept.append(kept)
            self._has_changed.set()
            await kept

    async def _run(self) -> None:
        while True:
            await self._has_changed.wait()
            self._has_changed.clear()
            rows = [self._ledgers[name].rows() for name in self._touched]
            self._touched.clear()
            waiting, self._until_kept = self._until_kept, []
            self._is_keeping = True
            while rows and not await self._keep(rows, waiting):
                await asyncio.sleep(STORE_PAUSE_S)
            self._is_keeping = False
            for kept in waiting:
                _wake(kept)

    async def _keep(self, rows: Sequence[Rows], waiting: Sequence[asyncio.Future[None]]) -> bool:
        """If it cannot be kept, waiting callers get an error, ask again, and are answered once it is."""
        try:
            await self._store.in_thread(lambda: self._store.save_ledgers(self._roster.job, rows))
        except StoreError as error:
            log.error("%s: %s", self._roster.job, error)
            for kept in waiting:
                if not kept.done():
                    kept.set_exception(StoreError(error.message, code="store-failed"))
            return False
        return True


def _says_something(holder: Holder | None, message: wire.LeaseRequest) -> bool:
    """Whether there is anything in a request that must be kept, before it is granted anything."""
    if holder is None or message.generation > holder.generation:
        return True
    return bool(message.done or message.returned or message.failed or message.settles)


def _num_granted(ledger: ShardLedger, key: Key, request: int) -> int:
    return sum(each.request == request for each in ledger.holder(key).leases.values())


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
