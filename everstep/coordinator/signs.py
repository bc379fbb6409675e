"""Each worker's last signs of life and progress, from the worker itself or from its agent.

An agent's report lists the workers that changed, and vouches for the rest: they are running, with the progress last
reported. A worker that is vouched for need not repeat itself, so its watch is held until there is news. Once an agent
has been silent for most of a lease, `on_silence` is called: its workers must speak for themselves before their leases
end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from everstep.coordinator.clock import Now
from everstep.coordinator.roster.facts import Sign
from everstep.wire import OUTSIDE, AgentReport, Policy, Progress, Watch, WorkerState

VOUCHED = 2 / 3  # of a lease: an agent that has not reported for this long vouches for no worker
REPORTS_PER_S = 500  # of all agents of a job together, unless their leases need more
LONGEST_REPORT_S = 10.0
LONGEST_WATCH_S = 30.0  # half of what proxies usually allow a call to be silent


def report_interval_s(num_nodes: int, policy: Policy) -> float:
    """How long an agent's report is held: longer with more nodes, but short enough for three reports per lease."""
    wanted_s = max(policy.heartbeat_s, num_nodes / REPORTS_PER_S)
    return min(wanted_s, policy.lease_s / 3, LONGEST_REPORT_S)


@dataclass(kw_only=True, slots=True)
class _Voucher:
    """What one agent said about its workers."""

    incarnation: str = ""
    number: int = 0  # of its last report
    heard_at: float = 0.0
    running: Mapping[str, tuple[WorkerState, float]] = field(default_factory=dict)  # and when it was reported
    timer: asyncio.TimerHandle | None = None


class WorkerSigns:
    def __init__(self, signs: dict[str, Sign], lease_s: float, now: Now, on_silence: Callable[[str], None]) -> None:
        self.all = signs
        self.num_steps = 0  # reported so far
        self._vouched_s, self._now, self._on_silence = VOUCHED * lease_s, now, on_silence
        self._vouchers: dict[str, _Voucher] = {}

    def begin(self, name: str, now: float) -> None:
        """Called when a process has announced itself."""
        self.all[name] = Sign(alive_at=now, told_at=now)

    def prove_alive(self, name: str, now: float) -> None:
        if sign := self.all.get(name):
            sign.alive_at = now
        else:
            self.all[name] = Sign(alive_at=now, told_at=now, phase_since=now)

    def is_vouched(self, name: str) -> bool:
        sign = self.all.get(name)
        return sign is not None and sign.is_vouched

    def hear_worker(self, name: str, message: Watch, generation: int, now: float) -> None:
        """`generation`: the latest."""
        sign = self.all.setdefault(name, Sign(alive_at=now, told_at=now))
        sign.alive_at, sign.generation, sign.placed = now, message.generation, max(sign.placed, message.generation)
        if not sign.is_vouched:  # otherwise its agent reports it: messages from two senders could overtake each other
            self._tell(sign, message, now, generation, now)

    def place(self, name: str, agent: str, generation: int) -> None:
        """The worker was informed of its place in this generation. Its watcher may not know that yet, so make it ask
        again: it may have seen the end of this generation while it asked about an earlier one."""
        sign = self.all[name]
        if sign.placed != generation:
            sign.placed = generation
            if sign.num_held:
                self._on_silence(agent)

    def hear_agent(self, agent: str, report: AgentReport, generation: int, now: float) -> bool:
        """False: the report builds on one that is not known here, so the agent must list all workers again."""
        voucher = self._vouchers.get(agent) or self._begin(agent)
        is_known = (voucher.incarnation, voucher.number) == (report.incarnation, report.after)
        before = voucher.running
        running = dict(before) if report.after and is_known else {}
        for state in report.workers:
            if state.is_running:
                running[state.worker] = (state, now)
            else:
                running.pop(state.worker, None)
        voucher.incarnation, voucher.number = report.incarnation, report.number
        voucher.running, voucher.heard_at = running, now
        if gone := before.keys() - running.keys():
            self._end(agent, gone)
        for name, (state, said_at) in running.items():
            if (sign := self.all.get(name)) is not None:  # else it has not announced itself: only its agent watches it
                if sign.is_vouched and not state.has_progress:
                    self._on_silence(agent)
                sign.alive_at, sign.is_vouched = now, state.has_progress
                if state.has_progress:
                    self._tell(sign, state, said_at, generation, now)
        return is_known or report.after == 0

    def forget(self, agent: str) -> None:
        """Called when an agent stops vouching for all of its workers."""
        if voucher := self._vouchers.pop(agent, None):
            assert voucher.timer is not None
            voucher.timer.cancel()
            self._end(agent, voucher.running)

    def close(self) -> None:
        for agent in list(self._vouchers):
            self.forget(agent)

    def _begin(self, agent: str) -> _Voucher:
        voucher = self._vouchers[agent] = _Voucher()
        self._look_later(agent, voucher, self._vouched_s)
        return voucher

    def _look_later(self, agent: str, voucher: _Voucher, in_s: float) -> None:
        voucher.timer = asyncio.get_running_loop().call_later(in_s, self._look, agent, voucher)

    def _look(self, agent: str, voucher: _Voucher) -> None:
        left_s = voucher.heard_at + self._vouched_s - self._now()
        if left_s > 0:
            self._look_later(agent, voucher, left_s)
        else:
            self.forget(agent)

    def _end(self, agent: str, names: Iterable[str]) -> None:
        for name in names:
            if sign := self.all.get(name):
                sign.is_vouched = False
        self._on_silence(agent)

    def _tell(self, sign: Sign, progress: Progress, said_at: float, generation: int, now: float) -> None:
        """A phase of an earlier generation says nothing about this one."""
        self.num_steps += sign.step != progress.step
        sign.told_at, sign.step = now, progress.step
        sign.phase = progress.phase if sign.generation == generation else OUTSIDE
        sign.phase_since = said_at - progress.phase_s
        sign.longest_step_s, sign.longest_wait_s = progress.longest_step_s, progress.longest_wait_s
        sign.state_bytes = progress.state_bytes
