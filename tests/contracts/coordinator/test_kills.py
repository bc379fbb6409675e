"""kill -9 the coordinator again and again while workers report and lease: whatever it has said stays true.

Workers are threads with real calls. Each knows what it was told, and compares the next answer with it; a call without
an answer is made again, with the same number. At the end every sample has been reported, and accepted, exactly once."""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.env import read_token
from everstep.ranges import merged, size, within, without
from everstep.retry import patiently
from lab.frail_coordinator import FrailCoordinator
from lab.length import usual

NUM_KILLS = {"sqlite": usual(10, long=70), "postgres": usual(4, long=28)}
NUM_WORKERS = 6
SPEC = wire.DatasetSpec(size=12_000, batch_size=4, minibatches_per_shard=2)


class Log:
    """What all workers were told, and how much of it."""

    def __init__(self):
        self.changed = threading.Condition()
        self.accepted: list[tuple[int, int]] = []
        self.num_answers = 0
        self.is_last = False  # no more kills: take what is left in large bites
        self.error: BaseException | None = None

    def count(self, accepted):
        with self.changed:
            self.accepted += accepted
            self.num_answers += 1
            self.changed.notify_all()

    def wait_for_answers(self, number):
        with self.changed:
            enough = self.num_answers + number
            assert self.changed.wait_for(lambda: self.num_answers >= enough or self.error, 60)


class Worker(threading.Thread):
    def __init__(self, number, coordinator, log, puppet_class):
        super().__init__(name=f"reader {number}")
        self.coordinator, self.log, self.puppet_class = coordinator, log, puppet_class
        self.chance = random.Random(number)
        self.begin()

    def begin(self):
        name = uuid.uuid4().hex
        self.puppet = self.patiently(lambda: self.puppet_class(self.coordinator, name))
        self.patiently(self.puppet.announce)
        self.request, self.left = 0, {}

    def patiently(self, call):
        return patiently(call, 60.0)

    def run(self):
        try:
            while not self.turn():
                pass
        except BaseException as error:
            self.log.error = error
            with self.log.changed:
                self.log.changed.notify_all()

    def turn(self):
        """Report some of what it holds, maybe give some back, ask for more."""
        if self.chance.random() < 0.01 and not self.log.is_last:
            self.patiently(lambda: self.puppet.exit(-9))
            self.begin()
        self.request += 1
        done, returned = self.choose()
        message = wire.LeaseRequest(
            incarnation=self.puppet.incarnation,
            dataset="train",
            request=self.request,
            done=done,
            returned=returned,
            wants=16 if self.log.is_last else self.chance.choice([0, 1, 1, 2]),
            wait_s=0.2,
        )
        answer = self.patiently(lambda: self.coordinator.report_and_lease(self.puppet.name, message))
        assert answer.refused == [], answer.refused
        for part in (*done, *returned):
            left = without(self.left.pop(part.lease), part.start, part.start + part.count)
            self.left |= {part.lease: left} if left else {}
        told = {each.lease: tuple(map(tuple, each.left)) for each in answer.leases}
        assert self.left.items() <= told.items(), f"{self.puppet.name} was told of {told}, and held {self.left}"
        self.left = told
        self.log.count([(part.start, part.start + part.count) for part in done])
        return answer.is_end

    def choose(self):
        done, returned = [], []
        for lease, left in self.left.items():
            start, stop = left[0]
            cut = stop if self.log.is_last else self.chance.randint(start, stop)
            if cut > start:
                done.append(wire.LeasePart(lease=lease, start=start, count=cut - start))
            if cut < stop and self.chance.random() < 0.1:
                returned.append(wire.LeasePart(lease=lease, start=cut, count=stop - cut))
        return done, returned


@pytest.mark.parametrize("kind", NUM_KILLS)
@pytest.mark.timeout(600)
def test_whatever_it_has_said_stays_true(kind, request, tmp_path, puppet_class, held_port):
    store = request.getfixturevalue("postgres_url") if kind == "postgres" else str(tmp_path / "db")
    frail, log = FrailCoordinator(tmp_path, store, held_port), Log()
    chance = random.Random(5)
    coordinator = Coordinator(frail.url, read_token(frail.token_file), "kills")
    workers = []
    try:
        coordinator.create_job(wire.JobSpec(policy=wire.Policy(lease_s=60.0)))
        coordinator.register_dataset("train", SPEC)
        workers = [Worker(number, coordinator, log, puppet_class) for number in range(NUM_WORKERS)]
        for worker in workers:
            worker.start()
        for _ in range(NUM_KILLS[kind]):
            log.wait_for_answers(chance.randint(1, 20))
            frail.kill()
            accepted = merged(log.accepted)
            frail.start()
            done = merged(map(tuple, patiently(lambda: coordinator.shard_checkpoint("train"), 60.0).done))
            assert all(size(within(done, start, stop)) == stop - start for start, stop in accepted)
        log.is_last = True
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive()
        if log.error:
            raise log.error
        (view,) = coordinator.datasets().datasets
    finally:
        log.is_last = True
        coordinator.close()
        for worker in workers:
            worker.join(60)
        frail.close()
    assert "Traceback" not in frail.log_file.read_text()
    assert view.is_end and view.done == SPEC.size
    times = Counter(position for start, stop in log.accepted for position in range(start, stop))
    assert set(times) == set(range(SPEC.size)) and set(times.values()) == {1}
