"""Leases without a coordinator: this process serves itself, by the same calls and messages.

Under plain torchrun shard k belongs to rank k % WORLD_SIZE, counted through all epochs; each rank knows of its own
alone. Nothing is kept: what was done is lost with the process, unless it is saved (`checkpoint`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from everstep import wire
from everstep.errors import PermanentError, UsageError
from everstep.ranges import Range, Ranges, gaps, merged, size, within, without

MINIBATCHES_PER_SHARD = wire.Policy().minibatches_per_shard
SHARD_FAILURES = wire.Policy().shard_failures


class LocalLeases:
    def __init__(self, dataset: str, spec: wire.DatasetSpec, *, rank: int = 0, num_workers: int = 1) -> None:
        self._dataset = dataset
        self._spec = replace(spec, minibatches_per_shard=spec.minibatches_per_shard or MINIBATCHES_PER_SHARD)
        self._rank, self._num_workers = rank, num_workers
        self._shard_size = spec.batch_size * (self._spec.minibatches_per_shard or 1)
        self._bad: dict[int, wire.BadShard] = {}
        self._done: Ranges = ()
        self._num_leases = 0
        self._restored = ""
        self._begin()

    def register_dataset(self, dataset: str, spec: wire.DatasetSpec) -> wire.DatasetView:
        done, bad = size(self._done), list(self._bad.values())
        return wire.DatasetView(
            dataset=dataset, spec=self._spec, done=done, is_end=False, epochs=[], bad_shards=bad, reason=""
        )

    def report_and_lease(self, _worker: str, message: wire.LeaseRequest) -> wire.Leased:
        refused = [self._refuse(part) for part in message.done if not self._report(part)]
        for part in message.returned:
            self._again += [(part.start, part.start + part.count)] if self._take_out(part) else []
        for failed in message.failed:
            self._fail(failed)
        for _ in range(message.wants):
            if not self._lease():
                break
        return wire.Leased(
            leases=[self._view(lease) for lease in self._out],
            refused=refused,
            give_back=[],
            is_end=self._is_exhausted() and not self._out,
            reason="" if not self._is_exhausted() else "all samples of this worker have been leased",
        )

    def shard_checkpoint(self, _dataset: str) -> wire.ShardCheckpoint:
        spec = self._spec
        done = [list(each) for each in self._done]
        bad = list(self._bad.values())
        return wire.ShardCheckpoint(size=spec.size, shuffle=spec.shuffle, seed=spec.seed, done=done, bad_shards=bad)

    def restore_shards(self, _dataset: str, message: wire.RestoreShards) -> None:
        if self._restored == message.request:
            return
        saved, spec = message.checkpoint, self._spec
        for name in ("size", "shuffle", "seed"):
            if getattr(saved, name) != getattr(spec, name):
                raise UsageError(
                    f"dataset {self._dataset} has {name}={getattr(spec, name)}, the checkpoint {getattr(saved, name)}",
                    hint="restore what was saved of this dataset, or make a new one",
                    code="checkpoint-of-other-dataset",
                )
        self._restored = message.request
        self._done = merged((start, stop) for start, stop in saved.done)
        self._bad = {each.start: each for each in saved.bad_shards}
        self._begin()

    def close(self) -> None: ...

    def _begin(self) -> None:
        skipped = [(start, stop) for bad in self._bad.values() for start, stop in bad.skipped]
        self._fresh = self._shards(merged([*self._done, *skipped]))
        self._ahead: list[Range] = []  # drawn from there, and not leased yet
        self._again: list[Range] = []
        self._out: dict[int, Ranges] = {}

    def _shards(self, done: Ranges) -> Iterator[Range]:
        spec, length, number = self._spec, self._shard_size, 0
        for epoch in range(spec.epochs):
            begins, ends = epoch * spec.size, (epoch + 1) * spec.size
            for start in range(begins, ends, length):
                if number % self._num_workers == self._rank:
                    yield from gaps(done, start, min(start + length, ends))
                number += 1

    def _is_exhausted(self) -> bool:
        if not self._again and not self._ahead:
            self._ahead = [each for each in [next(self._fresh, None)] if each is not None]
        return not self._again and not self._ahead

    def _lease(self) -> bool:
        if self._is_exhausted():
            return False
        # No two ranks use the same number: the reporter for all merges neighboring parts of a lease.
        number = self._num_leases * self._num_workers + self._rank + 1
        self._out[number] = ((self._again or self._ahead).pop(0),)
        self._num_leases += 1
        return True

    def _view(self, lease: int) -> wire.Lease:
        left = self._out[lease]
        epoch, start, stop = left[0][0] // self._spec.size, left[0][0], left[-1][1]
        return wire.Lease(lease=lease, epoch=epoch, start=start, stop=stop, left=[list(each) for each in left])

    def _take_out(self, part: wire.LeasePart | wire.FailedPart) -> bool:
        left, stop = self._out.get(part.lease, ()), part.start + part.count
        if size(within(left, part.start, stop)) < part.count:
            return False
        self._out[part.lease] = without(left, part.start, stop)
        if not self._out[part.lease]:
            del self._out[part.lease]
        return True

    def _report(self, part: wire.LeasePart) -> bool:
        """Also of other ranks: so that a checkpoint knows of all."""
        is_known = not self._is_mine(part.start) or self._take_out(part)
        if is_known:
            self._done = merged([*self._done, (part.start, part.start + part.count)])
        return is_known

    def _is_mine(self, position: int) -> bool:
        epoch, start = divmod(position, self._spec.size)
        per_epoch = -(-self._spec.size // self._shard_size)
        return (epoch * per_epoch + start // self._shard_size) % self._num_workers == self._rank

    def _refuse(self, part: wire.LeasePart) -> wire.RefusedPart:
        is_done = size(within(self._done, part.start, part.start + part.count)) == part.count
        reason = "it was reported before" if is_done else f"lease {part.lease} is not held"
        return wire.RefusedPart(lease=part.lease, start=part.start, count=part.count, reason=reason, is_done=is_done)

    def _fail(self, part: wire.FailedPart) -> None:
        """Left out at once, if that is wanted: no other machine could try. Else leased again, a few times."""
        if not self._take_out(part):
            return
        stop, shard = part.start + part.count, part.start - part.start % self._spec.size % self._shard_size
        known = self._bad.get(shard) or wire.BadShard(start=shard, failures=0, reason="", skipped=[])
        bad = replace(known, failures=known.failures + 1, reason=part.reason)
        if self._spec.on_bad_shard == wire.SKIP:
            bad = replace(bad, skipped=[*bad.skipped, [part.start, stop]])
        elif bad.failures < SHARD_FAILURES:
            self._again.append((part.start, stop))
        else:
            raise PermanentError(
                f"positions {part.start} to {stop} of dataset {self._dataset} failed {bad.failures} times, "
                f"the last time because {part.reason}",
                hint='on_bad_shard="skip" leaves such samples out, and lists them',
                code="shard-failed-too-often",
            )
        self._bad[shard] = bad
