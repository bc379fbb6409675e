"""Workers that read records, against a real coordinator: real processes with real loaders, and real deaths."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from everstep import env, wire
from everstep.client.calls import Coordinator
from everstep.data.leases import MODEST_S
from everstep.data.record_index import RecordIndexService
from everstep.engine import incarnation

SCRIPT = """
import json, os, sys, time
from torch.utils.data import DataLoader, Dataset
from everstep import RecordIndexService

options = json.loads(sys.argv[1])
pause_s, num_workers = options.pop("pause_s"), options.pop("num_workers")
tells, halts = options.pop("tells", False), options.pop("halts", False)


class Elastic(Dataset):
    def __len__(self):
        return sys.maxsize

    def __getitem__(self, _):
        if tells:
            parent = os.getppid()
            os.write(1, f'{{"asks": {os.getpid()}}}\\n'.encode())  # whole: another process writes there, too
            while tells == "late" and os.getppid() == parent:
                time.sleep(0.01)
        return service.fetch_record_index()


service = RecordIndexService(**options)
for records in DataLoader(Elastic(), batch_size=service.batch_size, num_workers=num_workers):
    time.sleep(pause_s)
    service.report_batch_done()
    print(json.dumps(records.tolist()), flush=True)
    if halts:
        sys.stdin.readline()
        halts = False
print(json.dumps({"left_out": [each.num_records for each in service.left_out]}), flush=True)
"""


class Worker:
    """A process that reads records, and prints each batch that it has reported. With `halts`, it does nothing more
    after the first one until it is told to."""

    def __init__(self, server, coordinator, **options):
        numbers = {"batch_size": 4, "num_minibatches_per_shard": 2, "dataset_name": "train", "pause_s": 0.01}
        name = coordinator.reserve(wire.ReserveWorker(agent="a0", request=os.urandom(8).hex())).worker
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            env.COORDINATOR: server.url,
            env.TOKEN_FILE: str(server.token_file),
            env.JOB: coordinator.job,
            env.WORKER: name,
        }
        environment[env.COORDINATOR_DEADLINE] = str(options.pop("deadline_s", 120))
        command = [sys.executable, "-c", SCRIPT, json.dumps(numbers | {"num_workers": 0} | options)]
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.printed, self.errors = [], ""
        self.changed = threading.Condition()
        self.threads = [threading.Thread(target=each) for each in (self._listen, self._note)]
        for thread in self.threads:
            thread.start()

    def _listen(self):
        for line in self.process.stdout:
            with self.changed:
                self.printed.append(json.loads(line))
                self.changed.notify_all()

    def _note(self):
        self.errors = self.process.stderr.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()

    def wait_for_batches(self, number):
        deadline = time.monotonic() + 200  # two of them import torch
        with self.changed:
            while len(self.printed) < number:
                is_told = self.changed.wait(deadline - time.monotonic())
                assert is_told, (len(self.printed), self.printed[-1:], self.process.poll(), self.errors)

    def go_on(self):
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()

    def join(self):
        for thread in self.threads:
            thread.join()

    def finish(self):
        code = self.process.wait(200)
        self.join()
        assert code == 0, self.errors
        return self

    @property
    def records(self):
        return [record for batch in self.printed if isinstance(batch, list) for record in batch]

    @property
    def left_out(self):
        return self.printed[-1]["left_out"]


@pytest.fixture
def cast(play, server):
    """Start workers of one job; they are ended with the test. One that does not get on for a while keeps its records,
    unless `shard_lease_s` says otherwise."""
    with ExitStack() as stack:

        def start(number=1, on=server, job=None, shard_lease_s=600.0, **options):
            job = job or play(on, shard_lease_s=shard_lease_s)
            workers = [stack.enter_context(Worker(on, job.coordinator, **options)) for _ in range(number)]
            return job, workers

        yield start


@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_workers_share_a_dataset_each_record_once(cast, num_workers):
    numbers = {"dataset_size": 202, "num_epochs": 2, "shuffle": True, "num_workers": num_workers}
    job, (first,) = cast(**numbers, halts=True)
    first.wait_for_batches(1)
    _, (second,) = cast(job=job, **numbers)
    second.wait_for_batches(1)
    first.go_on()
    counts = Counter(first.finish().records + second.finish().records)
    assert sum(counts.values()) == 400
    assert max(counts.values()) == 2
    assert sorted(first.left_out + second.left_out) == [2, 2]
    assert job.coordinator.datasets().datasets[0].is_end


def test_a_coordinator_that_is_killed_and_comes_back_loses_nothing(cast, server_class, tmp_path):
    frail = server_class(tmp_path, str(tmp_path / "db"))
    try:
        _, workers = cast(2, on=frail, dataset_size=600, num_workers=1)
        for times in range(1, 4):
            wait_for(lambda number=6 * times: sum(len(each.printed) for each in workers) >= number)
            frail.kill()
            frail.start()
        counts = Counter(record for worker in workers for record in worker.finish().records)
        assert counts == Counter(range(600))
    finally:
        frail.end()


def test_a_dead_workers_records_go_to_others(cast):
    numbers = {"dataset_size": 120, "num_workers": 2}
    job, (doomed,) = cast(**numbers, shard_lease_s=3.0, halts=True)
    doomed.wait_for_batches(1)
    _, (other,) = cast(job=job, **numbers)
    other.wait_for_batches(1)
    doomed.process.send_signal(signal.SIGKILL)
    doomed.process.wait()
    other.finish()
    assert set(doomed.records) | set(other.records) == set(range(120))
    assert job.coordinator.datasets().datasets[0].is_end


def test_a_coordinator_that_stays_away_is_an_error_and_not_the_end(cast, server_class, tmp_path):
    frail = server_class(tmp_path, str(tmp_path / "db"))
    try:
        _, (worker,) = cast(on=frail, dataset_size=10_000_000, num_workers=1, deadline_s=1)  # more than it can read
        worker.wait_for_batches(3)
    finally:
        frail.end()
    assert worker.process.wait(60) == 1
    worker.join()
    assert "CoordinatorUnreachable" in worker.errors and "gave up after" in worker.errors
    assert all(isinstance(line, list) for line in worker.printed)


@pytest.mark.parametrize("asks", ["early", "late"])  # late: when their worker is gone already
def test_a_loaders_processes_that_wait_for_records_end_with_their_worker(cast, asks):
    job, _ = cast(dataset_size=8, pause_s=60.0)  # holds all there is
    wait_for(lambda: (known := job.coordinator.datasets().datasets) and known[0].epochs[0].leased == 8)
    _, (waiting,) = cast(job=job, dataset_size=8, num_workers=2, tells=asks)
    waiting.wait_for_batches(2)
    processes = [line["asks"] for line in waiting.printed]
    waiting.process.kill()
    wait_for(lambda: not any(map(_is_alive, processes)))


def _is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition, within_s=200.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


# --- in steps ---


@pytest.fixture
def members(play):
    """Two services in one generation, each with a puppet that speaks for its worker otherwise."""
    services, clients = [], []

    def begin(number=2, policy=None, **options):
        numbers = {"batch_size": 4, "dataset_size": 32, "num_minibatches_per_shard": 2} | options
        job = play(start_workers=number, **(policy or {}))
        puppets = job.puppets(0)
        for _ in range(number):
            puppet = _puppet(job)
            puppets.append(puppet)
        job.together(*(puppet.arrive for puppet in puppets))
        for puppet in puppets:
            puppet.settle()
            service = RecordIndexService(**numbers, dataset_name="train")
            clients.append(Coordinator(job.server.url, job.server.token, job.coordinator.job))
            service.join_steps(is_newcomer=False)
            service._begin(clients[-1], puppet.name)
            services.append(service)
            service.regrouped(puppet.generation, [], False)
        return job, puppets, services

    yield begin
    for service in services:
        service.close()


def _puppet(job):
    puppet = job.puppets(1)[0]
    puppet.incarnation = incarnation.current()
    puppet.announce()
    return puppet


def fetch(service):
    return [service.fetch_record_index() for _ in range(service.batch_size)]


def test_steps_to_the_end_with_ghosts_for_who_has_nothing(members):
    job, _, services = members(dataset_size=40, num_epochs=2)
    seen, unproved, steps = [], [], 0
    while not all(service.is_end for service in services):
        taken = []
        for service in services:  # a step of all
            records = fetch(service)
            batch = service.take()
            taken += batch.parts
            seen += [] if batch.is_ghost else records
        for service in services:  # … which proves the one before
            service.report(unproved)
        unproved, steps = taken, steps + 1
        assert steps < 2000
    assert Counter(seen) == Counter([*range(40)] * 2)
    for service in services:
        service.end()
        with pytest.raises(StopIteration):
            while True:
                service.fetch_record_index()
    assert job.coordinator.datasets().datasets[0].is_end


def test_a_lost_members_batch_in_a_committed_step_is_done_and_the_rest_is_read_by_others(members):
    _, (lost, left), (first, second) = members(dataset_size=32)
    fetch(first), fetch(second)
    committed = [*first.take().parts, *second.take().parts]  # the step that both hold
    fetch(first)
    first.take()  # … and one that nobody committed
    lost.exit(-9)
    left.arrive()
    left.settle()
    second.regrouped(left.generation, committed, True)
    done = {record for part in committed for record in range(part.start, part.start + part.count)}
    seen = []
    while not second.is_end:
        records = fetch(second)
        batch = second.take()
        seen += [] if batch.is_ghost else records
        second.report(batch.parts)
    assert Counter(seen) == Counter(set(range(32)) - done)


def test_a_report_of_a_generation_that_is_over_is_said_again_in_the_next(members):
    job, (a, b), (first, second) = members(dataset_size=32)
    durable = threading.Event()
    fetch(first), fetch(second)
    batch, others = first.take(), second.take()
    a.break_("a socket broke")
    job.together(a.arrive, b.arrive)
    second.regrouped(b.generation, [], True)
    with second._leases.changed:
        assert second._leases.changed.wait_for(lambda: second._leases.is_current, 60)
        assert second._leases.holds(others.parts)  # which it was told in the new generation
    first.report(batch.parts, durable.set)  # it does not know yet
    assert not durable.wait(0.6)
    first.regrouped(a.generation, [], False)
    assert durable.wait(60)
    assert job.coordinator.datasets().datasets[0].done == 4


def test_a_slow_worker_gives_back_what_it_has_not_begun(members):
    _, _, (fast, slow) = members(dataset_size=64, num_minibatches_per_shard=4)
    fetch(slow)
    slow.take()
    seen = []
    deadline = time.monotonic() + 60
    while len(seen) < 60 and time.monotonic() < deadline:
        records = fetch(fast)
        batch = fast.take()
        seen += [] if batch.is_ghost else records
        fast.report(batch.parts)
    assert len(seen) == 60  # all but the batch that the slow one holds in its hands


def test_what_a_slow_worker_gave_back_is_not_its_again_before_it_needs_more(members):
    job, _, (fast, slow) = members(dataset_size=64, num_minibatches_per_shard=4)
    fetch(slow)
    slow.take()
    for done in range(4, 52, 4):
        fetch(fast)
        fast.report(fast.take().parts)
        wait_for(lambda done=done: job.coordinator.datasets().datasets[0].done == done)  # at a pace for small leases

    def held_by(service):
        with service._leases.changed:
            return service._leases._held.num_whole()

    wait_for(lambda: held_by(slow) == 0)
    called_at = slow._leases._called_at
    wait_for(lambda: slow._leases._called_at > called_at + MODEST_S)  # it holds what is in its hands
    assert held_by(slow) == 0


def test_saved_and_restored_by_all_workers(members):
    job, _, (first, second) = members(dataset_size=32)
    fetch(first), fetch(second)
    used = [first.take(), second.take()]
    first.report(used[0].parts)
    saved = first.state_dict(usage=used[1].parts)
    fetch(first)
    first.report(first.take().parts)
    wait_for(lambda: job.coordinator.datasets().datasets[0].done == 8)
    for service in (first, second):
        service.load_state_dict(saved)
        service.state_dict()
    assert sum(stop - start for start, stop in job.coordinator.shard_checkpoint("train").done) == 8
    assert job.coordinator.datasets().datasets[0].done == 8
    records = fetch(first)
    batch = first.take()
    assert not batch.is_ghost
    assert not set(records) & {r for each in used for p in each.parts for r in range(p.start, p.start + p.count)}
