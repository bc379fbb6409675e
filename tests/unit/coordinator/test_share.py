"""How much of what is left a worker gets, so that all are through at the same time."""

from __future__ import annotations

import heapq

import pytest

from everstep import wire
from everstep.coordinator.shards.leasing import Load, WorkerPace, decide_lease, decide_share, is_expected
from everstep.coordinator.shards.ledger import ShardLedger

SIZES = {"batch_size": 10, "shard_size": 80}


def load(per_s, num_held=0):
    return Load(per_s=per_s, num_held=num_held)


def test_while_there_is_plenty_it_is_a_whole_shard():
    assert decide_share(load(100), [load(100)], num_free=10_000, **SIZES).most == 80


def test_towards_the_end_it_is_half_of_what_is_left_to_each_by_its_pace():
    assert decide_share(load(300), [load(100)], num_free=160, **SIZES).most == 60
    assert decide_share(load(100), [load(300)], num_free=160, **SIZES).most == 20
    assert decide_share(load(300), [load(100)], num_free=10, **SIZES).most == 10


def test_what_it_holds_is_part_of_its_share():
    assert decide_share(load(300, 60), [load(100)], num_free=160, **SIZES).most == 50


def test_nothing_for_a_slow_one_that_all_would_wait_for():
    decision = decide_share(load(10), [load(100), load(100)], num_free=20, **SIZES)
    assert decision.most == 0
    assert decision.reason == "all is done in 0.10 s; with one batch more this worker would take 1.00 s"


@pytest.mark.parametrize("num_workers", [1, 2, 7])
def test_the_last_batch_is_nobodys_too_much_among_equals(num_workers):
    assert decide_share(load(10), [load(10)] * (num_workers - 1), num_free=1, **SIZES).most == 10


def test_a_lease_is_worth_its_call():
    assert decide_share(load(1000), [load(1000)], num_free=20, **SIZES).most == 50


def test_who_has_not_asked_for_long_is_not_counted_on():
    pace = WorkerPace(per_s=10.0, asked_at=100.0)
    assert is_expected(pace, num_leased=100, now=119.0)
    assert not is_expected(pace, num_leased=100, now=121.0)
    assert not is_expected(pace, num_leased=0, now=103.0)


def simulate(batch_s, num_batches, minibatches_per_shard, epochs=1):
    """Seconds to the end of the data, if a call takes no time; each worker asks when it has nothing at hand."""
    spec = wire.DatasetSpec(
        size=num_batches * 10, batch_size=10, minibatches_per_shard=minibatches_per_shard, epochs=epochs
    )
    ledger, now = ShardLedger.new("d", spec), 0.0
    keys = [(f"w{n}", "a") for n in range(len(batch_s))]
    for key in keys:
        ledger.heard(key, 1, 0, [])
    due, seen = [(0.0, n) for n in range(len(keys))], []
    while not ledger.is_end:
        now, n = heapq.heappop(due)
        key = keys[n]
        lease = next(iter(ledger.holders[key].leases.values()), None)
        if lease is not None and lease.since < now:  # one batch of it is done
            start, stop = lease.left[0]
            done = wire.LeasePart(lease=lease.lease, start=start, count=min(10, stop - start))
            assert not ledger.report(done, key, now, may_speak_for_others=False)
            seen += range(done.start, done.start + done.count)
        if not ledger.holders[key].leases:
            ledger.pace(key, batch_s[n], now)
            decision = decide_lease(ledger.facts(key, {}, 1e9), now)
            if decision.fresh is not None:
                ledger.grant_fresh(decision.fresh, key, 1, now)
        is_busy = bool(ledger.holders[key].leases)
        heapq.heappush(due, (now + (batch_s[n] if is_busy else 0.01), n))
    assert sorted(seen) == list(range(spec.size * epochs))
    return now


@pytest.mark.parametrize("minibatches_per_shard", [1, 8, 64])
@pytest.mark.parametrize("num_batches", [780, 787, 793])
@pytest.mark.parametrize("batch_s", [(0.1, 0.1, 0.1, 0.1), (0.1, 0.1, 0.1, 0.4), (0.1, 0.5, 1.0, 2.0)])
def test_all_are_through_at_the_same_time_whatever_their_pace_and_the_size_of_shards(
    batch_s, num_batches, minibatches_per_shard
):
    ideal_s = num_batches / sum(1 / each for each in batch_s)
    assert simulate(batch_s, num_batches, minibatches_per_shard) < ideal_s + 0.5


def test_one_alone_gets_all_and_so_do_epochs_one_after_the_other():
    assert simulate([0.1], 100, 8, epochs=3) == pytest.approx(30.0)
    assert simulate([0.1, 0.4], 100, 8, epochs=3) < 300 / 12.5 + 3 * 0.5
