"""How each kind of fault is done to a running job, and undone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from soak.job import DisturbedJob, TooLate
from soak.schedule import Fault, Schedule


def disturb(job: DisturbedJob, schedule: Schedule) -> list[str]:
    """Let it happen, as long as the job trains. Which faults came to it."""
    done: list[str] = []
    moment = time.monotonic()
    with suppress(TooLate):
        for fault in schedule.faults:
            moment = max(moment + fault.after_s, time.monotonic())
            job.pass_until(moment)
            job.note(f"{fault.kind} for {fault.lasts_s:.1f} s")
            ACTS[fault.kind](job, fault)
            done.append(fault.kind)
    return done


# --- workers and nodes --------------------------------------------------------------------------------


def _kill(job: DisturbedJob, fault: Fault) -> None:
    _hurt(job, job.victims(1, fault.pick), signal.SIGKILL)


def _kill_two(job: DisturbedJob, fault: Fault) -> None:
    _hurt(job, job.victims(2, fault.pick), signal.SIGKILL)


def _kill_all(job: DisturbedJob, fault: Fault) -> None:
    """What is left is the newest checkpoint."""
    _hurt(job, job.living(), signal.SIGKILL)


def _preempt(job: DisturbedJob, fault: Fault) -> None:
    _hurt(job, job.victims(1, fault.pick), signal.SIGTERM)


def _freeze(job: DisturbedJob, fault: Fault) -> None:
    victims = job.victims(1, fault.pick)
    _hurt(job, victims, signal.SIGSTOP)
    job.undo_later(" ".join(victims), fault.lasts_s, lambda: _thaw(job, victims))


def _thaw(job: DisturbedJob, workers: list[str]) -> None:
    job.recover(workers)
    _signal(job, workers, signal.SIGCONT)


def _join(job: DisturbedJob, fault: Fault) -> None:
    job.add_node(fault.pick)


def _kill_agent(job: DisturbedJob, fault: Fault) -> None:
    node, workers = job.victim_node(fault.pick)
    job.harmed |= workers
    job.agent_of(node).signal(signal.SIGKILL, is_for_group=False)


def _preempt_node(job: DisturbedJob, fault: Fault) -> None:
    node, workers = job.victim_node(fault.pick)
    job.harmed |= workers
    job.agent_of(node).signal(signal.SIGTERM, is_for_group=False)


def _freeze_node(job: DisturbedJob, fault: Fault) -> None:
    node, workers = job.victim_node(fault.pick)
    agent = job.agent_of(node)
    agent.signal(signal.SIGSTOP, is_for_group=False)
    _hurt(job, workers, signal.SIGSTOP)

    def thaw() -> None:
        _thaw(job, sorted(workers))
        agent.signal(signal.SIGCONT, is_for_group=False)

    job.undo_later(node, fault.lasts_s, thaw)


def _hurt(job: DisturbedJob, workers: Iterable[str], number: int) -> None:
    job.harmed |= set(workers)
    _signal(job, workers, number)


def _signal(job: DisturbedJob, workers: Iterable[str], number: int) -> None:
    for worker in workers:
        with suppress(ProcessLookupError):  # it has ended by itself, or was ended
            os.kill(job.pid_of(worker), number)


# --- the coordinator ----------------------------------------------------------------------------------


def _kill_coordinator(job: DisturbedJob, fault: Fault) -> None:
    job.undo("coordinator")
    job.kill_coordinator()
    job.undo_later("coordinator", fault.lasts_s, job.start_coordinator)


def _end_coordinator(job: DisturbedJob, fault: Fault) -> None:
    job.undo("coordinator")
    job.signal_coordinator(signal.SIGTERM)

    def start_again() -> None:
        job.kill_coordinator()
        job.start_coordinator()

    job.undo_later("coordinator", fault.lasts_s, start_again)


def _freeze_coordinator(job: DisturbedJob, fault: Fault) -> None:
    job.undo("coordinator")
    job.signal_coordinator(signal.SIGSTOP)
    job.undo_later("coordinator", fault.lasts_s, lambda: job.signal_coordinator(signal.SIGCONT))


# --- the network --------------------------------------------------------------------------------------


def _cut_cable(job: DisturbedJob, fault: Fault) -> None:
    job.undo("network")
    (host,), workers = job.victim_hosts(1, fault.pick)
    job.harmed |= workers
    job.hosts.cut(host)

    def mend() -> None:
        job.hosts.mend(host)
        job.recover(workers)

    job.undo_later("network", fault.lasts_s, mend)


def _cut_between(job: DisturbedJob, fault: Fault) -> None:
    """Who of the two is left out, the coordinator decides."""
    job.undo("network")
    (one, other), workers = job.victim_hosts(2, fault.pick)
    job.harmed |= workers
    job.hosts.cut_between(one, other)

    def mend() -> None:
        job.hosts.mend_between(one, other)
        job.recover(workers)

    job.undo_later("network", fault.lasts_s, mend)


def _crash_host(job: DisturbedJob, fault: Fault) -> None:
    """It comes back, with a node of its own."""
    job.undo("network")
    (host,), workers = job.victim_hosts(1, fault.pick)
    job.harmed |= workers
    job.hosts.crash(host)

    def mend() -> None:
        job.hosts.mend(host)
        job.add_node(host - 1)

    job.undo_later("network", fault.lasts_s, mend)


# --- disks --------------------------------------------------------------------------------------------


def _fill_disk(job: DisturbedJob, fault: Fault) -> None:
    name, disk = job.disk(fault.pick)
    job.undo(name)
    disk.fill()
    job.undo_later(name, fault.lasts_s, disk.empty)


def _read_only_disk(job: DisturbedJob, fault: Fault) -> None:
    name, disk = job.disk(fault.pick)
    job.undo(name)
    disk.forbid_writing()
    job.undo_later(name, fault.lasts_s, disk.allow_writing)


ACTS: dict[str, Callable[[DisturbedJob, Fault], None]] = {
    "kill": _kill,
    "kill-two": _kill_two,
    "kill-all": _kill_all,
    "freeze": _freeze,
    "freeze-node": _freeze_node,
    "preempt": _preempt,
    "preempt-node": _preempt_node,
    "join": _join,
    "kill-agent": _kill_agent,
    "kill-coordinator": _kill_coordinator,
    "end-coordinator": _end_coordinator,
    "freeze-coordinator": _freeze_coordinator,
    "cut-cable": _cut_cable,
    "cut-between": _cut_between,
    "crash-host": _crash_host,
    "fill-disk": _fill_disk,
    "read-only-disk": _read_only_disk,
}
