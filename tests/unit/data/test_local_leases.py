"""Without a coordinator a process serves itself, by the same messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep import wire
from everstep.data.held_leases import joined
from everstep.data.local_leases import LocalLeases
from everstep.errors import UsageError

SPEC = wire.DatasetSpec(size=10, batch_size=2, epochs=2, minibatches_per_shard=2)


def call(source, **content):
    request = wire.LeaseRequest(incarnation="i", dataset="d", request=1, **{"wants": 0} | content)
    return source.report_and_lease("", request)


def spans(answer):
    return [(each.start, each.stop, each.epoch) for each in answer.leases]


def whole(lease):
    return wire.LeasePart(lease=lease.lease, start=lease.start, count=lease.stop - lease.start)


def test_shards_go_round_the_ranks_through_all_epochs():
    sources = [LocalLeases("d", SPEC, rank=rank, num_workers=2) for rank in range(2)]
    assert [spans(call(source, wants=9)) for source in sources] == [
        [(0, 4, 0), (8, 10, 0), (14, 18, 1)],
        [(4, 8, 0), (10, 14, 1), (18, 20, 1)],
    ]


def test_the_end_is_when_all_is_reported():
    source = LocalLeases("d", SPEC)
    held = call(source, wants=9)
    assert (held.is_end, held.reason) == (False, "all samples of this worker have been leased")
    *most, last = [whole(each) for each in held.leases]
    assert not call(source, done=most).is_end
    again = call(source, done=[last, most[0]])
    assert again.is_end
    assert [each.is_done for each in again.refused] == [True]
    assert source.shard_checkpoint("d").done == [[0, 20]]


def test_what_was_saved_is_restored_once():
    source = LocalLeases("d", SPEC)
    (first,) = call(source, wants=1).leases
    call(source, done=[wire.LeasePart(lease=first.lease, start=0, count=3)])
    restore = wire.RestoreShards(request="a", checkpoint=source.shard_checkpoint("d"))
    other = LocalLeases("d", SPEC)
    other.restore_shards("d", restore)
    assert spans(call(other, wants=2)) == [(3, 4, 0), (4, 8, 0)]
    other.restore_shards("d", restore)
    assert len(call(other).leases) == 2
    with pytest.raises(UsageError, match="dataset d has size=11, the checkpoint 10"):
        LocalLeases("d", wire.DatasetSpec(size=11, batch_size=2)).restore_shards("d", restore)


def test_what_cannot_be_read_is_left_out_and_listed():
    source = LocalLeases("d", replace(SPEC, on_bad_shard="skip"))
    leases = call(source, wants=9).leases
    call(source, failed=[wire.FailedPart(lease=leases[1].lease, start=5, count=1, reason="torn")])
    assert source.shard_checkpoint("d").bad_shards == [
        wire.BadShard(start=4, failures=1, reason="torn", skipped=[[5, 6]])
    ]
    rest = [p for p in map(whole, leases) if p.start != 4]
    number = leases[1].lease
    pieces = [wire.LeasePart(lease=number, start=4, count=1), wire.LeasePart(lease=number, start=6, count=2)]
    assert call(source, done=rest + pieces).is_end


def test_one_rank_can_report_for_all():
    sources = [LocalLeases("d", SPEC, rank=rank, num_workers=2) for rank in range(2)]
    leases = [lease for source in sources for lease in call(source, wants=9).leases]
    assert len({each.lease for each in leases}) == 6
    first = [whole(each) for each in leases if each.start < 8]
    assert call(sources[0], done=joined(first)).refused == []
    assert sources[0].shard_checkpoint("d").done == [[0, 8]]
