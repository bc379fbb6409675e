"""An agent's report vouches for its workers: their watches are held until there is news, and it speaks for them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from everstep import wire

HELD_S = 60.0  # far longer than any wait here
LEASE_S = 3.0  # for stories in which one runs out: longer than a busy machine lets us pause between two calls
SOON_S = 20.0  # shorter than the longest hold, so that a call held for long by mistake is noticed


class VouchingAgent:
    """An agent that only reports. Each report is held for a heartbeat, and says what changed."""

    def __init__(self, job, *puppets):
        self.job, self.number, self.after = job, 0, 0
        self.states = [wire.WorkerState(worker=each.name, is_running=True, has_progress=True) for each in puppets]

    def report(self, *states):
        self.number += 1
        report = wire.AgentReport(
            incarnation="i", node="n", workers=list(states), number=self.number, after=self.after, wait_s=HELD_S
        )
        orders = self.job.coordinator.report("a0", report)
        self.after = 0 if orders.wants_all else self.number
        return orders

    def report_all(self, **progress):
        return self.report(*(replace(state, **progress) for state in self.states))


@pytest.fixture
def thread():
    with ThreadPoolExecutor(1) as thread:
        yield thread


def test_a_vouched_watch_is_held_until_there_is_news(play, thread):
    job = play(start_workers=2, heartbeat_s=0.1)
    w0, w1 = job.training(2)
    agent = VouchingAgent(job, w0, w1)
    agent.report_all()
    w0.watch()
    watching = thread.submit(w0.watch, wait_s=HELD_S)
    for _ in range(10):
        agent.report()
    assert not watching.done()

    w1.exit(-9)

    assert watching.result(SOON_S).is_closed


def test_a_report_vouches_for_the_workers_that_it_does_not_list(play):
    job = play(start_workers=2, heartbeat_s=0.1, lease_s=LEASE_S)
    w0, w1 = job.training(2)
    agent = VouchingAgent(job, w0, w1)
    until = time.monotonic() + 2 * LEASE_S
    agent.report_all()
    while time.monotonic() < until:
        assert not agent.report().wants_all

    assert job.statuses() == {"w0": "member", "w1": "member"}

    agent.report(replace(agent.states[1], is_running=False))  # stopped, for example by a debugger
    deadline = time.monotonic() + SOON_S
    while job.statuses()["w1"] != "lost":
        assert time.monotonic() < deadline
        agent.report()


def test_the_workers_of_an_agent_that_falls_silent_speak_for_themselves_before_their_leases_end(play, thread):
    job = play(heartbeat_s=0.1, lease_s=LEASE_S)
    (w0,) = job.training(1)
    w0.watch()
    VouchingAgent(job, w0).report_all()
    answer = thread.submit(w0.watch, wait_s=HELD_S).result(SOON_S)  # to hear from the worker: no news

    assert (answer.is_closed, job.statuses()) == (False, {"w0": "member"})

    until = time.monotonic() + 2 * LEASE_S
    while time.monotonic() < until:
        w0.watch(wait_s=HELD_S)  # from now on, each is held for a heartbeat
    assert job.statuses() == {"w0": "member"}


def test_a_report_that_builds_on_an_unknown_one_has_to_list_all(play):
    """As after a restart of the coordinator, or once it has given up on the agent."""
    job = play(heartbeat_s=1.0)
    (w0,) = job.training(1)
    agent = VouchingAgent(job, w0)
    agent.number = agent.after = 7

    assert agent.report().wants_all  # and at once
    assert not agent.report_all().wants_all


def test_what_an_agent_says_of_its_workers_progress_counts(play):
    job = play(start_workers=2, heartbeat_s=0.1, hang_s=0.5)
    w0, w1 = job.training(2)
    job.together(w0.watch, w1.watch)  # each says which generation it is in
    agent = VouchingAgent(job, w0, w1)
    busy, idle = agent.states
    agent.report(replace(busy, step=5, phase=wire.COMPUTING), replace(idle, step=5, phase=wire.WAITING))
    w0.step = 9
    w0.watch()  # its own words do not count while its agent speaks for it
    assert {worker.step for worker in job.view().workers} == {5}

    deadline = time.monotonic() + SOON_S
    while job.statuses()["w0"] != "lost":
        assert time.monotonic() < deadline
        agent.report()
    (view,) = [worker for worker in job.view().workers if worker.worker == "w0"]
    assert "w0 has computed for" in view.reason


def test_a_watch_about_an_earlier_generation_than_the_worker_is_in_is_not_held_for_long(play, thread):
    """Its watcher does not know the new generation yet, so what happens to it would not be news to the watcher."""
    job = play(start_workers=2, heartbeat_s=0.1)
    w0, w1 = job.training(2)
    VouchingAgent(job, w0, w1).report_all()
    w1.exit(-9)
    w0.arrive()
    w0.generation = 1
    w0.watch()

    assert thread.submit(w0.watch, wait_s=HELD_S).result(SOON_S).generation == 2


def test_a_spare_that_is_vouched_for_is_held_until_it_is_needed(play, thread):
    job = play(heartbeat_s=0.1, start_workers=2, max_workers=2)
    w0, w1 = job.training(2)
    (w2,) = job.puppets(1)
    agent = VouchingAgent(job, w0, w1, w2)
    agent.report_all()
    arriving = thread.submit(w2.arrive_once, wait_s=HELD_S)
    for _ in range(15):  # longer than the call of a worker without a voucher is held
        agent.report()
    assert not arriving.done()

    w0.exit(-9)
    w1.arrive()

    assert arriving.result(SOON_S).is_formed


def test_more_agents_report_less_often_but_at_least_three_times_per_lease(play):
    job = play(heartbeat_s=0.25, lease_s=0.6)
    assert VouchingAgent(job).report().report_s == pytest.approx(0.2)
