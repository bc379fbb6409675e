"""Every position is done once, leased to one, or waits: whatever is reported, given back, lost or restored.

The model beside the ledger is a set per worker; what the store would keep is read back after every act."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from everstep import wire
from everstep.coordinator.shards.leasing import decide_lease
from everstep.coordinator.shards.ledger import ShardLedger, check_same
from everstep.coordinator.store.store import Store
from everstep.errors import Refused

WORKERS = [("w0", "a"), ("w1", "b"), ("w2", "c")]


def members(ranges):
    return {position for start, stop in ranges for position in range(start, stop)}


def new_ledger(**spec):
    numbers = {"size": 10, "batch_size": 2, "minibatches_per_shard": 2} | spec
    return ShardLedger.new("d", wire.DatasetSpec(**numbers))


def take(ledger, key, request=1, now=0.0):
    """As the service does; the lease that was given, if any."""
    if key not in ledger.holders:
        ledger.heard(key, request, 0, [])
    before = set(ledger.holders[key].leases)
    decision = decide_lease(ledger.facts(key, {}, 4.0), now)
    if decision.again is not None:
        ledger.grant_again(decision.again, key, request, now, decision.most)
    elif decision.fresh is not None:
        ledger.grant_fresh(decision.fresh, key, request, now)
    return next((ledger.holders[key].leases[each] for each in set(ledger.holders[key].leases) - before), None)


def part(lease, start=None, stop=None):
    start, stop = lease.start if start is None else start, lease.stop if stop is None else stop
    return wire.LeasePart(lease=lease.lease, start=start, count=stop - start)


class Books(RuleBasedStateMachine):
    @initialize(
        size=st.integers(1, 20), epochs=st.integers(1, 3), batch_size=st.integers(1, 5), overlaps=st.booleans(),
        on_bad=st.sampled_from([wire.STOP, wire.SKIP]),
    )  # fmt: skip
    def begin(self, size, epochs, batch_size, overlaps, on_bad):
        self.store = Store("sqlite://")
        spec = wire.DatasetSpec(
            size=size, epochs=epochs, batch_size=batch_size, minibatches_per_shard=2, is_overlapping=overlaps,
            on_bad_shard=on_bad,
        )  # fmt: skip
        self.ledger = ShardLedger.new("d", spec)
        self.held: dict[tuple[str, str], set[int]] = {key: set() for key in WORKERS}
        self.done: set[int] = set()
        self.skipped: set[int] = set()
        self.requests = itertools.count(1)

    @rule(key=st.sampled_from(WORKERS))
    def ask(self, key):
        lease = take(self.ledger, key, next(self.requests))
        if lease is not None:
            got = set(range(lease.start, lease.stop))
            taken = self.done | self.skipped | set().union(*self.held.values())
            assert got and not got & taken
            assert len({position // self.ledger.spec.size for position in got}) == 1
            if not self.ledger.spec.is_overlapping:
                before = min(got) // self.ledger.spec.size * self.ledger.spec.size
                assert set(range(before)) <= self.done | self.skipped or lease.start % self.ledger.spec.size
            self.held[key] |= got

    @rule(data=st.data(), key=st.sampled_from(WORKERS), what=st.sampled_from(["done", "returned", "failed"]))
    def bring(self, data, key, what):
        """Any part of any lease: only what the caller holds of it counts."""
        leases = [each for holder in self.ledger.holders.values() for each in holder.leases.values()]
        if not leases:
            return
        lease = data.draw(st.sampled_from(leases))
        start = data.draw(st.integers(0, self.ledger.total - 1))
        stop = data.draw(st.integers(start + 1, self.ledger.total))
        own = members(self.ledger.holders[key].leases[lease.lease].left) if self.is_owner(key, lease) else set()
        counted = own & set(range(start, stop))
        if what == "done":
            refused = self.ledger.report(part(lease, start, stop), key, 0.0, may_speak_for_others=False)
            self.done |= counted
        elif what == "returned":
            refused = self.ledger.take_back(part(lease, start, stop), key)
        else:
            failed = wire.FailedPart(lease=lease.lease, start=start, count=stop - start, reason="r")
            refused = self.ledger.fail(failed, key, 2)
            self.skipped |= members(self.ledger.skipped())
        self.held[key] -= counted
        refused = self.ledger.explain(refused)
        assert members((each.start, each.start + each.count) for each in refused) == set(range(start, stop)) - counted
        over = self.done | self.skipped
        assert all(set(range(each.start, each.start + each.count)) <= over for each in refused if each.is_done)

    def is_owner(self, key, lease):
        return key in self.ledger.holders and lease.lease in self.ledger.holders[key].leases

    @rule(data=st.data(), key=st.sampled_from(WORKERS))
    def another_reports_for_it(self, data, key):
        leases = list(self.ledger.holder(key).leases.values())
        if leases:
            lease = data.draw(st.sampled_from(leases))
            refused = self.ledger.report(part(lease), ("w9", "z"), 0.0, may_speak_for_others=True)
            left = members(lease.left)
            assert sum(each.stop - each.start for each in refused) == lease.stop - lease.start - len(left)
            self.done |= left
            self.held[key] -= left

    @rule(key=st.sampled_from(WORKERS))
    def lose(self, key):
        if key in self.ledger.holders:
            assert members(self.ledger.free(key)) == self.held[key]
            self.held[key] = set()

    @rule(chance=st.randoms())
    def restore(self, chance):
        """Some of what is done now, and nothing else."""
        checkpoint = self.ledger.checkpoint()
        checkpoint.done[:] = [each for each in checkpoint.done if chance.random() < 0.8]
        self.ledger.restore(str(next(self.requests)), checkpoint)
        self.done = members(checkpoint.done)
        self.held = {key: set() for key in WORKERS}

    @invariant()
    def all_agree(self):
        ledger = self.ledger
        assert members(ledger.done()) == self.done
        assert members(ledger.skipped()) == self.skipped
        for key, held in self.held.items():
            leases = ledger.holder(key).leases.values()
            assert members(left for lease in leases for left in lease.left) == held
        everything = set(range(ledger.total))
        assert ledger.is_end == (self.done | self.skipped == everything)
        for view in ledger.epochs():
            here = range(view.epoch * ledger.spec.size, (view.epoch + 1) * ledger.spec.size)
            assert (view.done, view.skipped) == (len(self.done & set(here)), len(self.skipped & set(here)))
            assert view.leased == len(set().union(*self.held.values()) & set(here))

    @invariant()
    def the_store_reads_back_the_same(self):
        self.store.save_ledgers("j", [self.ledger.rows()])
        (rows,) = self.store.load_ledgers("j")
        read = ShardLedger(rows)
        for name in ("spec", "next", "settled", "restored", "bad", "num_out"):
            assert getattr(read, name) == getattr(self.ledger, name)
        assert [facts(each) for each in read.leases()] == [facts(each) for each in by_key(self.ledger)]

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()


def facts(lease):
    return lease.lease, lease.start, lease.stop, lease.left, lease.request, lease.is_takeover


def by_key(ledger):
    for key in sorted(ledger.holders):
        yield from ledger.holders[key].leases.values()
    yield from sorted(ledger.waiting.values(), key=lambda each: each.lease)


def test_every_position_is_done_once():
    Books.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
    Books.TestCase("runTest").runTest()


def test_shards_end_with_their_epoch():
    ledger = new_ledger(size=10, epochs=2, is_overlapping=True)
    leases = [take(ledger, WORKERS[0]) for _ in range(7)]
    assert [(each.start, each.stop) for each in leases[:-1]] == [(0, 4), (4, 8), (8, 10), (10, 14), (14, 18), (18, 20)]
    assert leases[-1] is None


def test_a_lost_lease_is_split_at_the_sample_and_goes_first():
    ledger = new_ledger()
    lease = take(ledger, WORKERS[0])
    ledger.report(part(lease, 0, 3), WORKERS[0], 0.0, may_speak_for_others=False)
    ledger.free(WORKERS[0])
    again = take(ledger, WORKERS[1])
    assert (again.start, again.stop) == (3, 4)


def test_reports_that_do_not_count_say_why():
    ledger = new_ledger()
    lease, other = take(ledger, WORKERS[0]), take(ledger, WORKERS[1])

    def why(part_, by=WORKERS[0]):
        (refused,) = ledger.explain(ledger.report(part_, by, 0.0, may_speak_for_others=False))
        return refused.reason, refused.is_done

    assert why(part(other)) == ("positions 4 to 8 of lease 2: they are leased to w1 as lease 2", False)
    assert why(part(lease, 4, 6)) == ("positions 4 to 6 of lease 1: they are leased to w1 as lease 2", False)
    assert why(part(lease, 8, 9)) == ("positions 8 to 9 of lease 1: nothing from 8 on was leased yet", False)
    assert why(part(lease, 99, 100)) == ("positions 99 to 100 of lease 1: nothing from 8 on was leased yet", False)
    assert not ledger.report(part(lease), WORKERS[0], 0.0, may_speak_for_others=False)
    assert why(part(lease)) == ("positions 0 to 4 of lease 1: they are done already", True)


def test_a_shard_that_fails_too_often_stops_the_job_and_is_named():
    ledger = new_ledger()
    for times in range(3):
        lease = take(ledger, WORKERS[0])
        assert ledger.fatal(3) is None
        failed = wire.FailedPart(lease=lease.lease, start=lease.start, count=2, reason=f"no file {times}")
        ledger.fail(failed, WORKERS[0], 3)
        ledger.free(WORKERS[0])
    assert ledger.fatal(3) == "shard 0 to 4 of epoch 0 of dataset d failed 3 times, the last time because no file 2"


def test_or_is_skipped_and_listed():
    ledger = new_ledger(size=4, on_bad_shard=wire.SKIP)
    lease = take(ledger, WORKERS[0])
    ledger.report(part(lease, 0, 2), WORKERS[0], 0.0, may_speak_for_others=False)
    ledger.fail(wire.FailedPart(lease=lease.lease, start=2, count=2, reason="torn"), WORKERS[0], 1)
    assert ledger.is_end and ledger.fatal(1) is None
    assert list(ledger.bad.values()) == [wire.BadShard(start=0, failures=1, reason="torn", skipped=[[2, 4]])]
    assert ledger.checkpoint().done == [[0, 2]]


def test_a_ledger_is_small_whatever_the_size():
    ledger = new_ledger(size=10**12, epochs=1000)
    for request in range(100):
        lease = take(ledger, WORKERS[0], request + 1)
        ledger.report(part(lease), WORKERS[0], 0.0, may_speak_for_others=False)
    assert ledger.checkpoint().done == [[0, 400]]
    assert len(json.dumps(ledger.rows().kept["holders"][0]["leases"])) < 10


def test_other_numbers_are_refused_and_both_are_named():
    known = wire.DatasetSpec(size=10, batch_size=2, minibatches_per_shard=8)
    wanted = wire.DatasetSpec(size=12, batch_size=2, seed=7, minibatches_per_shard=8)
    with pytest.raises(Refused, match="registered with size=10, seed=0; this worker's says size=12, seed=7"):
        check_same("d", wanted, known)


def test_a_checkpoint_of_another_order_is_refused_and_nothing_changes():
    ledger = new_ledger()
    take(ledger, WORKERS[0])
    with pytest.raises(Refused, match="with seed=0; the checkpoint says seed=1"):
        ledger.restore("r", wire.ShardCheckpoint(size=10, shuffle=False, seed=1, done=[]))
    with pytest.raises(Refused, match=r"\[8, 11\] is not a range of the 10 positions of d"):
        ledger.restore("r", wire.ShardCheckpoint(size=10, shuffle=False, seed=0, done=[[8, 11]]))
    assert ledger.num_out == 4
