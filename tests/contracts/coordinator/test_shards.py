"""Samples by real calls: shared out as workers can, once each, whoever dies, on both stores."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from everstep import wire
from everstep.errors import Refused
from lab.command import until


class Reader:
    """A worker that reads samples, and remembers what a real one would."""

    def __init__(self, job, puppet, dataset="train"):
        self.job, self.puppet, self.dataset = job, puppet, dataset
        self.name, self.request = puppet.name, 0
        self.answer = None

    def call(self, *, again=False, **message):
        self.request += not again
        numbers = {"wants": 0, "wait_s": 0.0} | message
        request = wire.LeaseRequest(
            incarnation=self.puppet.incarnation, dataset=self.dataset, request=self.request, **numbers
        )
        self.answer = self.job.coordinator.report_and_lease(self.name, request)
        return self.answer

    def take(self, **message):
        """The leases that were not held before."""
        held = {each.lease for each in self.answer.leases} if self.answer else set()
        return [each for each in self.call(**({"wants": 1} | message)).leases if each.lease not in held]

    def take_at_last(self):
        """What is free some time."""
        deadline = time.monotonic() + 60
        while not (taken := self.take(wait_s=1.0)):
            assert time.monotonic() < deadline, self.answer.reason
        return taken

    def spans(self):
        return [(each.start, each.stop) for each in self.answer.leases]


def part(lease, start=None, stop=None):
    start, stop = lease.start if start is None else start, lease.stop if stop is None else stop
    return wire.LeasePart(lease=lease.lease, start=start, count=stop - start)


@pytest.fixture(params=["sqlite", "postgres"])
def frail(request, tmp_path, server_class):
    """A coordinator of its own, to be killed."""
    is_postgres = request.param == "postgres"
    server = server_class(tmp_path, request.getfixturevalue("postgres_url") if is_postgres else str(tmp_path / "db"))
    yield server
    server.end()


@pytest.fixture
def readers(play):
    """So many workers of a job with a dataset; `training` puts them into a generation first."""

    def begin(number, on=None, *, training=False, policy=None, **spec):
        numbers = policy or {}
        job = play(on, start_workers=number, **numbers) if on else play(start_workers=number, **numbers)
        job.coordinator.register_dataset(
            "train", wire.DatasetSpec(**({"size": 40, "batch_size": 5, "minibatches_per_shard": 2} | spec))
        )
        puppets = job.training(number) if training else job.puppets(number)
        return job, [Reader(job, puppet) for puppet in puppets]

    return begin


def view(job):
    return job.coordinator.datasets().datasets[0]


# --- sharing out ---


def test_everybody_gets_other_samples_and_the_end_is_told(readers):
    _, (a, b) = readers(2, epochs=2)
    seen = []
    while not (a.answer and a.answer.is_end):
        for reader in (a, b):
            held = reader.answer.leases if reader.answer else []
            for lease in reader.take(done=[part(each) for each in held]):
                seen += range(lease.start, lease.stop)
                assert lease.epoch == lease.start // 40
    assert sorted(seen) == list(range(80))
    assert a.answer.reason == "all samples of all epochs are done"
    assert b.call(wants=1).is_end


def test_a_dataset_has_the_numbers_that_it_was_first_registered_with(readers):
    job, _ = readers(1)
    again = wire.DatasetSpec(size=40, batch_size=5, minibatches_per_shard=2)
    assert job.coordinator.register_dataset("train", again).spec == again
    with pytest.raises(Refused, match="is registered with batch_size=5; this worker's says batch_size=6") as refused:
        job.coordinator.register_dataset("train", wire.DatasetSpec(size=40, batch_size=6, minibatches_per_shard=2))
    assert refused.value.status == 409
    assert (
        job.coordinator.register_dataset("other", wire.DatasetSpec(size=1, batch_size=1)).spec.minibatches_per_shard
        == 8
    )


def test_the_next_epoch_waits_for_the_last_sample_of_the_one_before(readers):
    _, (a, b) = readers(2, size=10, epochs=2)
    (last,) = a.take()
    assert not b.take()
    waiting = threading.Thread(target=b.take_at_last)
    waiting.start()
    a.call(done=[part(last)])
    waiting.join()
    assert b.spans() == [(10, 20)]


def test_epochs_may_overlap(readers):
    _, (a, b) = readers(2, size=10, epochs=2, is_overlapping=True)
    a.take()
    b.take()
    assert (a.spans(), b.spans()) == ([(0, 10)], [(10, 20)])


def test_who_waits_is_served_in_order_when_something_comes_back(readers):
    _, (a, b, c) = readers(3, size=10)
    (only,) = a.take()
    assert "10 samples are leased to w0; nothing else is left" in b.call(wants=1).reason
    waiting = threading.Thread(target=b.take_at_last)
    waiting.start()
    a.call(returned=[part(only, 5, 10)])
    waiting.join()
    assert b.spans() == [(5, 10)]
    assert not c.take()


def test_a_later_call_ends_one_that_is_held(readers, tmp_path, server_class):
    before = "import everstep.coordinator.datasets as shards\nshards.LONGEST_HOLD_S = 600.0\n"
    server = server_class(tmp_path, str(tmp_path / "db"), before=before)
    job, (a, b) = readers(2, server, size=20)
    a.take()
    (lease,) = b.take()
    with ThreadPoolExecutor(1) as thread:
        held = thread.submit(b.call, done=[part(lease, 10, 11)], wants=1, wait_s=600.0)
        until(lambda: view(job).done == 1, lambda: "the call has not come in")
        b.call()
        assert [each.left for each in held.result().leases] == [[[11, 20]]]
    server.stop()


# --- once each ---


def test_a_repeated_call_has_no_second_effect_and_finds_the_same_answer(readers):
    _, (a,) = readers(1)
    (lease,) = a.take()
    first = a.call(done=[part(lease)], wants=1)
    assert a.call(again=True, done=[part(lease)], wants=1) == first
    a.request -= 1
    with pytest.raises(Refused, match="request 1 comes after request 2"):
        a.call(again=True)


def test_parts_that_do_not_count_are_named(readers):
    job, (a, b) = readers(2)
    (lease,) = a.take()
    b.take()
    a.call(done=[part(lease, 0, 5)])
    refused = a.call(done=[part(lease, 0, 10), part(b.answer.leases[0])]).refused
    assert [(each.start, each.count, each.is_done) for each in refused] == [(0, 5, True), (10, 10, False)]
    assert refused[1].reason == "positions 10 to 20 of lease 2: they are leased to w1 as lease 2"
    assert view(job).done == 10


def test_a_dead_workers_samples_that_were_not_used_in_steps_are_leased_again_at_once(readers):
    _, (a, b) = readers(2)
    (lease,) = a.take()
    a.call(done=[part(lease, 0, 3)])
    a.puppet.exit(-9)
    with pytest.raises(Refused, match="w0 is dead"):
        a.call(done=[part(lease, 3, 10)])
    b.take()
    assert b.spans() == [(3, 10)]


def test_a_worker_that_dies_while_it_waits_gets_nothing_and_its_samples_go_to_others(readers):
    job, (a, b) = readers(2, size=10)
    (lease,) = a.take()
    held = threading.Thread(target=a.call, kwargs={"done": [part(lease, 0, 1)], "wants": 1, "wait_s": 1.0})
    held.start()
    deadline = time.monotonic() + 60
    while view(job).done == 0:
        assert time.monotonic() < deadline
    a.puppet.exit(-9)
    held.join()
    assert b.take(wait_s=1.0)
    assert b.spans() == [(1, 10)]


def test_a_dead_members_samples_wait_until_the_survivors_have_said_what_was_committed(readers):
    job, (a, b) = readers(2, training=True)
    (lease,) = a.take(generation=1)
    b.take(generation=1)
    a.call(generation=1, done=[part(lease, 0, 2)])
    a.puppet.exit(-9)
    (fresh,) = b.take(generation=1)
    assert fresh.start == 20  # not the dead one's
    b.puppet.arrive()
    committed = [part(lease, 2, 5)]  # in the last step that the survivor holds, by the one that is dead
    answer = b.call(generation=2, settles=True, done=committed, wants=1)
    assert answer.refused == []
    assert b.spans()[-1] == (5, 10)
    assert view(job).done == 5


def test_reports_of_a_generation_are_refused_after_a_later_one_has_settled(readers):
    _, (a, b) = readers(2, training=True)
    (lease,) = a.take(generation=1)
    a.puppet.break_("a socket broke")
    a.job.together(a.puppet.arrive, b.puppet.arrive)
    b.call(generation=2, settles=True)
    with pytest.raises(Refused, match="generation 1 is over: generation 2 has said what was committed before it"):
        a.call(generation=1, done=[part(lease)])
    assert a.call(generation=2, done=[part(lease)]).refused == []
    with pytest.raises(Refused, match="generation 3 does not exist; the latest is 2"):
        a.call(generation=3)


def test_a_frozen_worker_finds_out_what_it_has_lost(readers):
    _, (a, b) = readers(2, training=True, policy={"arrive_s": 0.2})
    a.take(generation=1)
    assert b.puppet.arrive().size == 1  # without the other, which does not come
    b.take(generation=2, settles=True)
    assert b.spans() == [(0, 10)]
    assert a.call(generation=1).leases == []  # and whatever it had begun is in no step that anybody holds


def test_a_new_process_of_a_worker_starts_with_nothing(readers):
    _, (a,) = readers(1)
    (lease,) = a.take()
    old = a.puppet.incarnation
    a.puppet.incarnation = uuid.uuid4().hex
    a.puppet.announce()
    a.request = 0
    assert a.take()[0].start == 0
    a.puppet.incarnation = old
    with pytest.raises(Refused, match="another process now"):
        a.call(done=[part(lease)])


def test_a_classic_worker_takes_samples_without_announcing_itself(readers):
    job, _ = readers(1, policy={"shard_lease_s": 3.0})
    names = [job.coordinator.reserve(wire.ReserveWorker(agent="a0", request=f"classic{n}")).worker for n in range(2)]

    def ask(name, process, request, **more):
        message = wire.LeaseRequest(incarnation=process, dataset="train", request=request, **more)
        return job.coordinator.report_and_lease(name, message)

    first = ask(names[0], "p", 1, wants=4)
    assert [each.start for each in first.leases] == [0, 10, 20, 30]
    with pytest.raises(Refused, match="one process of a worker takes samples"):
        ask(names[0], "q", 1)
    requests = itertools.count(1)
    while not (got := ask(names[1], "r", next(requests), wait_s=1.0)).leases:
        assert "leased to w1" in got.reason  # until the first has been silent for longer than its lease
    assert [each.start for each in got.leases] == [0]
    assert ask(names[0], "p", 2, wants=0).leases == []


# --- slow workers ---


def test_leases_are_smaller_towards_the_end(readers):
    _, (quick, slow) = readers(2, size=60, minibatches_per_shard=4)
    assert [each.stop - each.start for each in quick.take(batch_s=1.0)] == [20]  # of the other nothing is known
    assert [each.stop - each.start for each in slow.take(batch_s=3.0)] == [5]  # a quarter of all is 15
    quick.call(done=[part(each) for each in quick.answer.leases])
    assert [each.stop - each.start for each in quick.take(batch_s=1.0)] == [15]


def test_a_quick_worker_overtakes_a_slow_one_that_all_would_wait_for(readers):
    _, (quick, slow) = readers(2, size=10, minibatches_per_shard=1)
    (first,) = quick.take(batch_s=30.0)  # will be back for more within the minute
    assert not slow.take(batch_s=6000.0)
    assert "with one batch more this worker would take 6000.00 s" in slow.answer.reason
    waiting = threading.Thread(target=slow.take, kwargs={"wait_s": 1.0, "batch_s": 6000.0})
    waiting.start()
    assert [(each.start, each.stop) for each in quick.take(done=[part(first)], batch_s=30.0)] == [(5, 10)]
    waiting.join()
    assert slow.answer.leases == []


def test_a_slow_worker_gets_the_rest_if_the_quick_ones_do_not_ask(readers):
    _, (quick, slow) = readers(2, size=10, minibatches_per_shard=1)
    (first,) = quick.take(batch_s=0.01)
    quick.call(done=[part(first)])
    deadline = time.monotonic() + 60
    while not slow.take(wait_s=1.0, batch_s=600.0):
        assert time.monotonic() < deadline
    assert slow.spans() == [(5, 10)]


def test_a_slow_worker_is_asked_to_give_back_what_it_has_not_begun(readers):
    _, (slow, fast, other) = readers(3)
    slow.take()
    for _ in range(3):
        (lease,) = fast.take()
        fast.call(done=[part(lease)])
    taken, deadline = [], time.monotonic() + 60
    while not taken and time.monotonic() < deadline:
        taken = fast.take(wait_s=0.05)
        if give_back := slow.call().give_back:
            (lease,) = slow.answer.leases
            assert give_back == [lease.lease]
            slow.call(returned=[part(lease, 5, 10)])  # the first batch is in its hands
    assert [(each.start, each.stop) for each in taken] == [(5, 10)]
    assert slow.answer.leases[0].left == [[0, 5]]
    assert not other.call(wants=1, wait_s=0.3).leases  # nobody is asked twice for the same samples
    assert fast.call().give_back == []


# --- shards that fail ---


def test_a_shard_that_fails_too_often_stops_the_job_and_is_named(readers):
    job, (a,) = readers(1, policy={"shard_failures": 2})
    for times in range(2):
        (lease,) = a.take()
        a.call(failed=[wire.FailedPart(lease=lease.lease, start=0, count=10, reason=f"torn file {times}")])
    assert job.view().is_stopped
    assert job.view().reason == (
        "shard 0 to 10 of epoch 0 of dataset train failed 2 times, the last time because torn file 1"
    )
    answer = a.call(wants=1)
    assert (answer.is_stopped, answer.is_end) == (True, False)


def test_or_it_is_skipped_and_listed(readers):
    job, (a,) = readers(1, size=10, on_bad_shard="skip", policy={"shard_failures": 1})
    (lease,) = a.take()
    failed = wire.FailedPart(lease=lease.lease, start=5, count=5, reason="torn file")
    assert a.call(done=[part(lease, 0, 5)], failed=[failed], wants=1).is_end
    assert view(job).bad_shards == [wire.BadShard(start=0, failures=1, reason="torn file", skipped=[[5, 10]])]
    assert not job.view().is_stopped


# --- restarts, checkpoints ---


def test_a_restart_changes_nothing(readers, frail):
    job, (a, b) = readers(2, frail, training=True, epochs=2)
    (lease,) = a.take(generation=1)
    b.take(generation=1, wants=2)
    a.call(generation=1, done=[part(lease, 0, 3), part(lease, 7, 9)])
    b.call(generation=1, returned=[part(b.answer.leases[1], 25, 30)])
    (bad,) = b.answer.leases[:1]
    b.call(generation=1, failed=[wire.FailedPart(lease=bad.lease, start=12, count=2, reason="torn")])
    before, checkpoint, answers = view(job), job.coordinator.shard_checkpoint("train"), (a.answer, b.answer)

    frail.kill()
    frail.start()

    assert view(job) == before
    assert job.coordinator.shard_checkpoint("train") == checkpoint
    assert (a.call(again=True), b.call(again=True)) == answers
    b.call(generation=1, wants=2)
    assert b.spans()[-2:] == [(25, 30), (12, 14)]


def test_what_was_saved_is_restored_and_leases_from_before_are_void(readers, frail):
    job, (a, b) = readers(2, frail)
    (lease,) = a.take()
    a.call(done=[part(lease, 0, 4)])
    saved = job.coordinator.shard_checkpoint("train")
    assert saved.done == [[0, 4]]
    a.call(done=[part(lease, 4, 10)], wants=1)
    restore = wire.RestoreShards(request="once", checkpoint=saved)
    job.coordinator.restore_shards("train", restore)
    assert job.coordinator.shard_checkpoint("train") == saved
    assert a.call().leases == []

    (taken,) = b.take()
    assert (taken.start, taken.stop) == (4, 10)
    frail.kill()
    frail.start()
    job.coordinator.restore_shards("train", restore)  # its answer was lost, say
    assert b.call().leases == [taken]
    refused = a.call(done=[part(lease, 4, 10)]).refused
    assert [each.is_done for each in refused] == [False]


def test_samples_of_a_worker_that_died_while_the_coordinator_was_away(readers, frail):
    _, (a, b) = readers(2, frail)
    a.take()
    frail.kill()
    frail.start()
    (again,) = b.take()
    assert again.start == 10  # a full grace period for those who are yet to find it
    a.puppet.exit(-9)
    b.take()
    assert b.spans()[-1] == (0, 10)
