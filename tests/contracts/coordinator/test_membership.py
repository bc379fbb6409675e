"""The stories of a job, over HTTP with a real coordinator."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from everstep import wire
from everstep.client.calls import ANSWER_S, Coordinator
from everstep.errors import Refused

HELD_S = 3 * ANSWER_S  # who is not answered because something happened hears nothing for longer than a caller waits


def test_a_generation_is_formed_lost_and_formed_again(play):
    job = play(start_workers=3)
    w0, w1, w2 = job.training(3)

    w1.exit(-9)
    assert [each.watch().is_closed for each in (w0, w2)] == [True, True]
    answers = job.together(w0.arrive, w2.arrive)

    assert [(a.generation, a.rank, a.size, a.continues) for a in answers] == [(2, 0, 2, 1), (2, 1, 2, 1)]
    first = job.coordinator.generation(1)
    assert (first.is_closed, first.reason) == (True, "w1 died: killed by SIGKILL")
    assert [member.worker for member in first.members] == ["w0", "w1", "w2"]
    assert job.statuses() == {"w0": "member", "w1": "dead", "w2": "member"}


def test_a_watch_is_held_and_answered_at_once_when_something_changes(play):
    job = play(start_workers=2, heartbeat_s=HELD_S)
    w0, w1 = job.training(2)
    w0.watch()
    with ThreadPoolExecutor(1) as thread:
        watching = thread.submit(w0.watch)
        w1.exit(1)

        assert watching.result().is_closed


def test_a_quiet_watch_is_answered_after_a_heartbeat(play):
    job = play(heartbeat_s=0.2)
    (w0,) = job.training(1)
    w0.watch()
    started = time.monotonic()
    answer = w0.watch()

    assert time.monotonic() - started >= 0.15
    assert (answer.is_closed, answer.newcomers, answer.is_stopped) == (False, 0, False)


def test_a_change_between_two_watches_is_not_missed(play):
    job = play(start_workers=2, heartbeat_s=HELD_S)
    w0, w1 = job.training(2)
    w0.watch()
    w1.exit(1)

    assert w0.watch().is_closed  # not held, though nobody was waiting when it happened


def test_a_newcomer_learns_how_far_the_members_are_and_what_they_hold_each_time_it_announces_itself(play):
    job = play(start_workers=2, heartbeat_s=0.2)
    w0, w1 = job.training(2)
    w0.step, w1.step = 6, 7
    w0.state_bytes = 500
    job.together(w0.watch, w1.watch)
    (w2,) = job.puppets(1)
    assert w2.announce().step == 7
    w0.step = 9
    w0.watch()
    policy = w2.announce().policy
    assert w2.announce() == wire.Announced(is_newcomer=True, policy=policy, step=9, state_bytes=500)


def test_members_learn_of_a_newcomer_and_let_it_in_together(play):
    job = play(heartbeat_s=HELD_S)
    (w0,) = job.training(1)
    w0.watch()
    (w1,) = job.puppets(1)
    assert w1.announce().is_newcomer
    with ThreadPoolExecutor(1) as thread:
        joining = thread.submit(w1.arrive)
        watched = w0.watch()
        assert (watched.newcomers, watched.is_closed) == (1, False)
        w0.step = 7
        assert w0.arrive().size == 2
        assert joining.result().rank == 1


def test_a_closing_in_good_order_does_not_interrupt_those_who_still_finish_the_step(play):
    job = play(start_workers=3, heartbeat_s=0.1)
    w0, w1, w2 = job.training(3)
    assert not w0.arrive_once().is_formed
    assert not w1.watch().is_closed

    w2.exit(-9)  # a loss on top of it does

    assert w1.watch().is_closed
    assert [answer.size for answer in job.together(w0.arrive, w1.arrive)] == [2, 2]


def test_an_agent_is_told_to_kill_who_is_lost_until_it_is_gone(play, puppet_class):
    job = play(heartbeat_s=0.2, lease_s=0.6)
    job.puppets(1)
    puppet_class(job.coordinator)  # w1 has not announced itself yet: its life nobody watches but its agent
    states = [wire.WorkerState(worker="w0", is_running=False), wire.WorkerState(worker="w1", is_running=True)]
    report = wire.AgentReport(incarnation="a", node="n", workers=states)
    deadline = time.monotonic() + 60
    while not (orders := job.coordinator.report("a0", report)).kill:
        assert time.monotonic() < deadline

    assert [order.worker for order in orders.kill] == ["w0"]
    assert "no proof of life" in orders.kill[0].reason
    started = time.monotonic()
    assert job.coordinator.report("a0", report).kill == orders.kill
    assert time.monotonic() - started > 0.1  # told already: held, so that an agent does not spin
    job.coordinator.exited("w0", wire.WorkerExit(exit_code=-9))
    assert job.coordinator.report("a0", report).kill == []
    assert job.statuses()["w0"] == "dead"


def test_workers_leave_in_good_order_one_after_the_other(play):
    job = play(start_workers=2)
    w0, w1 = job.training(2)
    assert not w1.leave().is_released
    assert w0.watch().leavers == {"w1": 0}
    w0.arrive()
    assert not w1.leave().is_released  # w0 does not hold the state of generation 2 yet
    w0.settle()
    assert w1.leave().is_released
    assert w1.leave().is_released  # asked again
    w1.exit(0)
    assert w0.leave().is_released
    view = job.view()
    assert (view.is_finished, view.is_stopped) == (True, False)
    report = wire.AgentReport(incarnation="a", node="n", workers=[])
    orders = job.coordinator.report("a0", report)
    assert (orders.kill, orders.is_ended, orders.reason) == ([], True, "")


def test_a_leaver_that_is_ahead_is_called_back_when_another_dies(play):
    job = play(start_workers=3)
    w0, w1, w2 = job.training(3)
    w2.step = 5
    w2.leave()
    w0.exit(-9)
    with ThreadPoolExecutor(1) as thread:
        regrouping = thread.submit(w1.arrive)
        while not (left := w2.leave()).is_closed:
            assert not left.is_released
        assert w2.arrive().size == 2
        assert regrouping.result().continues == 1


def test_a_stop_reaches_everybody(play):
    job = play(start_workers=2, heartbeat_s=HELD_S)
    w0, w1 = job.training(2)
    w0.watch()
    with ThreadPoolExecutor(1) as thread:
        watching = thread.submit(w0.watch)
        job.coordinator.stop(wire.Stop(reason="enough"))
        assert watching.result().is_stopped
    assert w1.arrive() == wire.Arrived(is_formed=False, is_stopped=True, reason="enough")
    assert w1.leave().is_released
    orders = job.coordinator.report("a0", wire.AgentReport(incarnation="a", node="n", workers=[]))
    assert (orders.is_ended, orders.reason) == (True, "enough")
    with pytest.raises(Refused, match="is over: enough"):
        job.puppets(1)


def test_a_deadly_micro_batch_stops_the_job_and_is_named(play):
    job = play(micro_batch_deaths=2)
    w0, w1 = job.puppets(2)
    w0.exit(-11, step=17, micro_batch=2)
    w1.exit(-11, step=17, micro_batch=2)

    view = job.view()
    assert view.is_stopped
    assert view.reason.startswith("micro-batch 2 of step 17 killed w0, w1")


def test_all_waiting_for_each_other_are_told_to_probe(play):
    job = play(start_workers=2, stall_s=0.3, heartbeat_s=0.1)
    pair = job.training(2)
    for each in pair:
        each.step = 1
    deadline = time.monotonic() + 60
    phase_s = 0.0
    while not (watched := pair[0].watch(wire.WAITING, phase_s)).is_closed and time.monotonic() < deadline:
        pair[1].watch(wire.WAITING, phase_s)
        phase_s += 0.1

    assert watched.must_probe
    assert "waited for each other" in watched.reason


def test_every_request_may_be_repeated(play):
    job = play(start_workers=2, micro_batch_deaths=2)
    request = wire.ReserveWorker(agent="a0", request="one")
    assert job.coordinator.reserve(request) == job.coordinator.reserve(request) == wire.ReservedWorker(worker="w0")
    w1, w2, w3 = job.puppets(3)
    assert w1.announce() == w1.announce()
    job.together(w1.arrive, w2.arrive)
    w1.generation = 0  # the answer was lost
    assert w1.arrive_once() == w1.arrive_once()
    w1.generation = 1
    w1.settle()
    w1.settle()
    w1.break_("a socket broke")
    w1.break_("a socket broke, said again")
    w3.exit(-9, step=3, micro_batch=1)
    w3.exit(-9, step=3, micro_batch=1)

    view = job.view()
    assert not view.is_stopped  # one death, not two
    assert job.coordinator.generation(1).reason == "w1: a socket broke"
    assert job.coordinator.create_job(wire.JobSpec()) == view


def test_an_earlier_process_of_a_worker_is_refused(play):
    job = play()
    (w0,) = job.training(1)
    earlier = w0.incarnation
    w0.incarnation = "newer"
    w0.announce()
    w0.incarnation = earlier

    for call in (w0.arrive_once, w0.watch, w0.settle, w0.leave, lambda: w0.break_("x")):
        with pytest.raises(Refused) as refused:
            call()
        assert refused.value.status == 409


PATIENT = """
import everstep.coordinator.job as job, everstep.coordinator.roster.health as health
health.CUT_S = job.CUT_S = 600.0
"""


@pytest.fixture
def patient(tmp_path, server_class):
    """A coordinator that waits for a node that hung up for as long as a busy machine may take to go on."""
    server = server_class(tmp_path, str(tmp_path / "db"), before=PATIENT)
    yield server
    server.stop()


def test_workers_that_die_when_a_node_hangs_up_between_its_reports_have_not_failed(play, patient):
    """Those of a classic script die of a lost node before its lease is over."""
    job = play(patient, start_nodes=2, min_nodes=2, max_nodes=2)
    nodes = {name: Coordinator(job.server.url, job.server.token, job.coordinator.job) for name in ("a0", "a1")}

    def report(agent: str) -> wire.AgentOrders:
        said = wire.AgentReport(incarnation=agent, node=agent, workers=[], wait_s=0.0, num_workers=1)
        return nodes[agent].report(agent, said)

    deadline = time.monotonic() + 60
    while not all((here := report("a0"), report("a1").start)) or not here.start:
        assert time.monotonic() < deadline
    nodes["a1"].close()
    job.view()  # once it has answered, it has seen that end too
    (survivor,) = here.start[0].workers
    job.coordinator.exited(survivor, wire.WorkerExit(exit_code=1))

    assert "whether a1 is gone is not known yet" in job.view().reason
    assert not job.view().is_stopped
    nodes["a1"] = Coordinator(job.server.url, job.server.token, job.coordinator.job)
    report("a1")
    assert job.view().is_stopped  # it was not gone: then it was a failure, and no restart is allowed
    for each in nodes.values():
        each.close()
