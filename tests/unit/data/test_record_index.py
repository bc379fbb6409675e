"""Records in this process and in loaders' processes: whole batches, known order, the end only when it is true."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from everstep import wire
from everstep.data.local_leases import LocalLeases
from everstep.data.record_index import RecordIndexService
from everstep.errors import CoordinatorUnreachable, JobStopped, PermanentError, UsageError


class Elastic(Dataset):
    """As people write it: any index will do."""

    def __init__(self, service, slow=()):
        self.service, self.slow = service, slow

    def __len__(self):
        return sys.maxsize

    def __getitem__(self, _):
        index = self.service.fetch_record_index()
        if index in self.slow:
            time.sleep(0.2)
        return index, os.getpid()


@pytest.fixture
def make(monkeypatch):
    made = []

    def begin(*arguments, **options):
        made.append(RecordIndexService(*arguments, **options))
        return made[-1]

    yield begin
    for each in made:
        each.close()
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)  # 5 s for each after an error
    gc.collect()  # torch's iterators end their processes when they are collected
    for process in multiprocessing.active_children():
        process.join()


def batches(loader):
    return [records.tolist() for records, _ in loader]


def loader(service, num_workers=0, **more):
    return DataLoader(Elastic(service, **more), batch_size=service.batch_size, num_workers=num_workers)


class SharedLeases(LocalLeases):
    """Others take from them, too: what they do is said by the test."""

    def __init__(self, spec, free=None):
        super().__init__("d", spec)
        self.free = free  # leases that may be given; None: all
        self.calls, self.give_back, self.void, self.error, self.rest = [], [], [], None, True
        self.wake = threading.Condition()

    def report_and_lease(self, worker, message):
        with self.wake:
            self.calls.append(message)
            if self.error is not None:
                raise self.error
            wants = message.wants if self.free is None else min(message.wants, self.free)
            self.free = None if self.free is None else self.free - wants
            for number in self.void:
                self._out.pop(number, None)
            answer = super().report_and_lease(worker, replace(message, wants=wants))
            answer = replace(answer, give_back=self.give_back)
            self.give_back, self.void = [], []
            if message.wants and not wants:
                self.wake.wait(min(message.wait_s, 0.05))
            self.wake.notify_all()
            return answer

    def datasets(self):
        """What is held here is all that is not done of epoch 0, or another worker holds a sample of it, too."""
        held = sum(stop - start for left in self._out.values() for start, stop in left)
        others = 0 if self.rest else 1
        epoch = wire.EpochView(
            epoch=0, done=self._spec.size - held - others, leased=held + others, waiting=0, skipped=0
        )
        return wire.Datasets(datasets=[replace(self.register_dataset("d", self._spec), epochs=[epoch])])

    def heard(self, what, within_s=60.0):
        """Wait for a call of which this is true."""
        deadline = time.monotonic() + within_s
        with self.wake:
            while not (found := [each for each in self.calls if what(each)]):
                assert self.wake.wait(deadline - time.monotonic()), self.calls
            return found[0]


@pytest.fixture
def shared(make):
    """A service in steps with others, and its source."""

    def begin(size=40, free=None, in_steps=True, generation=1, **options):
        service = make(4, dataset_size=size, num_minibatches_per_shard=2, dataset_name="d", **options)
        source = SharedLeases(service._spec, free)
        if in_steps:
            service.join_steps(is_newcomer=False)
        service._begin(source, "w0")
        if in_steps:
            service.regrouped(generation, [], False)
        return service, source

    return begin


# --- who gets what ---


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"batch_size": 0, "dataset_size": 5}, "batch_size=0"),
        ({"batch_size": 2}, "dataset_size=None"),
        ({"batch_size": 2, "dataset_size": 0}, "dataset_size=0"),
        ({"batch_size": 2, "dataset_size": 5, "num_epochs": 0}, "num_epochs=0"),
        ({"batch_size": 2, "dataset_size": 5, "num_minibatches_per_shard": 0}, "num_minibatches_per_shard=0"),
        ({"batch_size": 2, "dataset_size": 5, "on_bad_shard": "drop"}, "on_bad_shard='drop'"),
    ],
)
def test_numbers_that_make_no_sense_are_named(numbers, message):
    with pytest.raises(UsageError, match=message):
        RecordIndexService(**numbers)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_every_record_of_every_epoch_once(make, num_workers, caplog):
    service = make(4, num_epochs=2, dataset_size=42, shuffle=True, num_minibatches_per_shard=2)
    torch_loader = loader(service, num_workers)
    got = batches(torch_loader)

    assert len(got) == 20
    counts = torch.bincount(torch.tensor(got).flatten(), minlength=42)
    assert counts.sum() == 80 and counts.max() == 2
    assert [(each.epoch, each.num_records) for each in service.left_out] == [(0, 2), (1, 2)]
    assert "4 samples were left out" in caplog.text and "2 of epoch 1, positions 82 to 84" in caplog.text
    assert batches(torch_loader) == []  # the end stays the end


def test_iteration_delivers_the_tail(make):
    service = make(4, num_epochs=2, dataset_size=6)
    assert list(service) == [0, 1, 2, 3, 4, 5] * 2
    assert service.left_out == []
    service.report_batch_done(6)
    service.report_batch_done()
    assert service.state_dict()["checkpoint"]["done"] == [[0, 10]]
    with pytest.raises(UsageError, match="3 records of dataset .* are reported as done; 2 have been handed out"):
        service.report_batch_done(3)


def test_alone_nobody_needs_to_report(make, monkeypatch):
    monkeypatch.setattr("everstep.data.batches.MANY", 10)
    service = make(4, dataset_size=400, num_minibatches_per_shard=2)
    for _ in range(80 * 4):
        service.fetch_record_index()
    assert service.state_dict()["checkpoint"]["done"] == [[0, 280]]


def test_the_same_seed_is_the_same_order_and_another_is_not(make):
    orders = [list(make(5, dataset_size=60, shuffle=True, seed=seed)) for seed in (3, 3, 4)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(60))


def test_under_torchrun_each_rank_takes_its_shards(make, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    got = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        got.append(list(make(2, dataset_size=20, num_minibatches_per_shard=2)))
    assert got == [[0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19], [4, 5, 6, 7, 12, 13, 14, 15]]


def test_batches_come_out_in_the_order_in_which_they_are_reported(make):
    """Also if one process of the loader is far behind the other."""
    service = make(4, dataset_size=40, num_minibatches_per_shard=2)
    got = batches(loader(service, 2, slow=(0, 8)))
    assert sorted(record for records in got for record in records) == list(range(40))
    for records in got:
        before = service.state_dict()["checkpoint"]["done"]
        service.report_batch_done()
        done = service.state_dict()["checkpoint"]["done"]
        assert _size(done) == _size(before) + 4
        assert all(any(start <= record < stop for start, stop in done) for record in records)


def _size(ranges):
    return sum(stop - start for start, stop in ranges)


def test_a_loader_of_another_batch_size_is_told_so(make):
    for num_workers in (0, 1):
        service = make(4, dataset_size=40)
        with pytest.raises(UsageError, match=r"a batch of 5, the RecordIndexService has batch_size=4"):
            next(iter(DataLoader(Elastic(service), batch_size=5, num_workers=num_workers)))


def test_a_loop_that_is_broken_off_loses_nothing(make):
    for num_workers in (0, 2):
        service = make(4, dataset_size=40, num_minibatches_per_shard=2)
        got = []
        for _ in range(2):
            for records, _ in loader(service, num_workers):
                got += records.tolist()
                service.report_batch_done()
                if len(got) == 12:
                    break
        assert sorted(got) == list(range(40))


def test_processes_that_persist_begin_anew_with_each_iteration(shared):
    service, _ = shared()
    torch_loader = DataLoader(Elastic(service), batch_size=4, num_workers=2, persistent_workers=True)
    got = []
    for stop in (2, 3, 100):
        for number, (records, _) in enumerate(torch_loader):
            batch = service.take()
            assert not batch.is_ghost
            assert records.tolist() == [p.start + n for p in batch.parts for n in range(p.count)]
            got += records.tolist()
            if len(got) == 40:
                service.end()
            if number + 1 == stop:
                break
    assert sorted(got) == list(range(40))


def test_one_loader_at_a_time(make):
    service = make(4, dataset_size=40)
    first = iter(loader(service))
    next(first)
    next(iter(loader(service)))
    with pytest.raises(UsageError, match="another loader has begun"):
        service._work().obtain((0, 0), 7)


def test_processes_that_wait_for_records_end_with_their_loader(shared, monkeypatch):
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 60.0)  # torch waits so long, then kills
    service, _ = shared(free=1)
    batches_of = iter(loader(service, 2))
    for _ in range(2):
        next(batches_of)
        service.take()
    processes = batches_of._workers
    del batches_of
    assert [process.exitcode for process in processes] == [0, 0]  # by themselves


# --- in steps with others ---


def test_what_is_taken_is_what_came_out(shared):
    for num_workers in (0, 2):
        service, _ = shared()
        for records, _ in loader(service, num_workers):
            batch = service.take()
            assert records.tolist() == [p.start + n for p in batch.parts for n in range(p.count)]
            assert (batch.num_records, batch.epoch, batch.is_ghost) == (4, 0, False)
            service.report(batch.parts)
            if records[-1] == 39:
                break
        _wait(lambda service=service: service.is_end)


def _wait(condition, within_s=60.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_worker_without_records_gets_one_ghost_at_a_time(shared):
    for num_workers in (0, 2):
        service, source = shared(free=1)
        come = iter(loader(service, num_workers))
        real = [next(come)[0].tolist(), next(come)[0].tolist()]
        assert [service.take().num_records for _ in real] == [4, 4]
        for _ in range(3):
            assert next(come)[0].tolist() == real[-1]
            ghost = service.take()
            assert (ghost.is_ghost, ghost.parts, ghost.num_records) == (True, (), 0)
        source.free = 1
        while next(come)[0].tolist() == real[-1]:
            assert service.take().is_ghost
        assert service.take().parts[0].start == 8
        with pytest.raises(UsageError, match="every batch of dataset d that was handed out"):
            for _ in range(9):
                service.take()
        del come


def test_the_end_is_when_the_group_says_so(shared):
    for num_workers in (0, 2):
        service, _ = shared(size=8)
        come, steps = loader(service, num_workers), 0
        for _ in come:
            batch = service.take()
            steps += 1
            service.report(batch.parts)
            if service.is_end:
                service.end()
        assert steps > 2
        assert service.is_end
        assert batches(come) == []


def test_reports_are_durable_when_it_is_said(shared):
    service, source = shared()
    come, durable = iter(loader(service)), threading.Event()
    next(come)
    batch = service.take()
    service.report(batch.parts, durable.set)
    assert durable.wait(60)
    assert source.shard_checkpoint("d").done == [[0, 4]]


def test_a_new_generation_is_told_at_once_and_asked_what_is_held(shared):
    service, source = shared()
    come = iter(loader(service))
    next(come)
    taken = service.take()
    next(come)
    source.void = [taken.parts[0].lease]  # this worker was thought lost
    others = wire.LeasePart(lease=99, start=0, count=1)
    service.regrouped(2, [others], True)
    lost = service.take()
    assert (lost.is_ghost, lost.parts) == (True, ())
    assert not service._leases.holds(taken.parts)
    said = source.heard(lambda call: call.generation == 2)
    assert (said.settles, said.done) == (True, [others])


def test_what_others_need_is_given_back_unless_it_is_cut(shared):
    service, source = shared(free=1)
    next(iter(loader(service)))
    source.give_back = [1]
    service.report([], lambda: None)
    assert source.heard(lambda call: call.returned).returned == [wire.LeasePart(lease=1, start=4, count=4)]


def test_a_remainder_goes_to_who_can_use_it(shared):
    service, source = shared(size=10, free=2, in_steps=False)
    source.rest = False
    assert service.fetch_record_index() == 0
    for _ in range(7):
        service.fetch_record_index()
    assert source.heard(lambda call: call.returned).returned == [wire.LeasePart(lease=2, start=8, count=2)]


def test_a_failure_in_the_background_is_raised_where_records_are_wanted(shared):
    for num_workers in (0, 2):
        service, source = shared(free=1, in_steps=False)
        source.error = JobStopped("a shard failed too often")
        with pytest.raises((JobStopped, PermanentError), match="a shard failed too often"):
            for _ in loader(service, num_workers):
                pass
    service, _ = shared()
    service._leases.give_up(PermanentError("no more"))
    with pytest.raises(PermanentError, match="no more"):
        service.take()


def test_a_coordinator_that_is_away_is_no_end_of_the_data(shared, monkeypatch):
    monkeypatch.setattr("everstep.env.coordinator_deadline_s", lambda: 0.5)
    service, source = shared(free=1, in_steps=False)
    source.error = CoordinatorUnreachable("not there")
    with pytest.raises(CoordinatorUnreachable, match="gave up"):
        for _ in range(20):
            service.fetch_record_index()


# --- checkpoints ---


def test_shards_are_saved_and_restored(make):
    service = make(4, dataset_size=20, num_epochs=2, dataset_name="d")
    taken = [service.fetch_record_index() for _ in range(10)]
    service.report_batch_done(8)
    saved = service.state_dict(usage=[wire.LeasePart(lease=1, start=8, count=2)])
    assert saved["usage"] == [[8, 10]]
    text = service.get_shard_checkpoint()

    again = make(4, dataset_size=20, num_epochs=2, dataset_name="d")
    again.load_state_dict(saved)
    assert taken + list(again) == [*range(20)] * 2

    third = make(4, dataset_size=20, num_epochs=2, dataset_name="d")
    assert third.fetch_record_index() == 0
    third.restore_shard_from_checkpoint(text)
    assert third.state_dict()["checkpoint"]["done"] == [[0, 8]]


def test_a_newcomer_leaves_the_jobs_data_as_it_is(make):
    service = make(4, dataset_size=20)
    service.load_state_dict({"checkpoint": {"size": 20, "shuffle": False, "seed": 0, "done": [[0, 8]]}})
    service.join_steps(is_newcomer=True)
    assert service.fetch_record_index() == 0


def test_people_are_told_what_is_waited_for(shared, caplog, monkeypatch):
    monkeypatch.setattr("everstep.data.batches.PATIENCE_S", 0.1)
    service, source = shared(free=1, in_steps=False)

    def give_when_told():
        _wait(lambda: "no sample for" in caplog.text)
        source.free = 1

    giving = threading.Thread(target=give_when_told)
    giving.start()
    for _ in range(9):
        service.fetch_record_index()
    giving.join()
    assert re.search(r"no sample for \d+ s", caplog.text)
    assert "8 were handed out here and not reported: report_batch_done()" in caplog.text
