"""Record indices by leases: fast workers take more, no sample is lost with a worker, and the end is the end of all.

`RecordIndexService` serves the process that made it and the processes of its loaders. It begins to lease at its first
use. A controller that takes steps together with other workers announces them (`join_steps`), and asks what each call of
the training function trains on (`take`); without one, the script reports what is done (`report_batch_done`)."""

from __future__ import annotations

import atexit
import hashlib
import itertools
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from everstep import env, wire
from everstep.data.batches import Key, LoaderBatches, RecordBatch, Records
from everstep.data.lease_source import LeaseSource, open_lease_source
from everstep.data.leases import Leases, LeftOut
from everstep.data.loader_server import (
    Answer,
    IndexBatches,
    LoaderClient,
    LoaderServer,
    Obtained,
    RecordIterator,
    RemoteBatches,
    hello_of_this_process,
)
from everstep.errors import UsageError
from everstep.ranges import merged

log = logging.getLogger("everstep")

__all__ = ["RecordBatch", "LeftOut", "RecordIndexService"]

_unnamed = itertools.count()  # services without a name, in the order in which the script makes them


class RecordIndexService:
    """`batch_size` must be that of the loader. `num_minibatches_per_shard` None: the job's setting, else 8.

    `dataset_name` None: "records", "records-1" and so on, in the order in which the script makes them, which must
    then be the same in all workers. `on_bad_shard`: what becomes of samples that cannot be read (see ShardDataset).
    `overlap_epochs`: an epoch may begin while samples of the one before are still leased."""

    def __init__(
        self,
        batch_size: int,
        num_epochs: int | None = None,
        dataset_size: int | None = None,
        shuffle: bool = False,
        dataset_name: str | None = None,
        num_minibatches_per_shard: int | None = None,
        seed: int = 0,
        *,
        on_bad_shard: str = wire.STOP,
        overlap_epochs: bool = False,
    ) -> None:
        _check(batch_size, num_epochs, dataset_size, num_minibatches_per_shard, on_bad_shard)
        assert dataset_size is not None
        self.batch_size = batch_size
        self.dataset_size = dataset_size
        self.num_epochs = num_epochs or 1
        self.dataset_name = dataset_name or _next_name()
        self._spec = wire.DatasetSpec(
            size=dataset_size,
            batch_size=batch_size,
            epochs=self.num_epochs,
            shuffle=shuffle,
            seed=seed,
            minibatches_per_shard=num_minibatches_per_shard,
            is_overlapping=overlap_epochs,
            on_bad_shard=on_bad_shard,
        )
        self._owner = os.getpid()
        self._begin_lock, self._fetch_lock = threading.Lock(), threading.Lock()
        self._groups = itertools.count()
        self._server = LoaderServer(self._answer, lambda: next(self._groups))
        self._address = self._server.address
        self._leases: Leases | None = None
        self._batches: LoaderBatches | None = None
        self._saved: wire.ShardCheckpoint | None = None  # to be restored at the first use
        self._first_generation = 0  # in which this worker took steps; 0: it takes none with others
        self._is_newcomer = self._in_steps = self._delivers_tail = self._is_closed = False
        self._iterator: tuple[int, RecordIterator] | None = None  # and the process that it serves
        atexit.register(self.close)

    def __getstate__(self) -> dict[str, Any]:
        """For a loader's process that does not begin as a fork of this one: how to reach this one."""
        return {
            name: getattr(self, name)
            for name in ("batch_size", "dataset_size", "num_epochs", "dataset_name", "_spec", "_address")
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._owner = 0
        self._iterator = None

    # --- records ------------------------------------------------------------------------------------------

    def fetch_record_index(self) -> int:
        """The next record, here or in a process of a loader; StopIteration at the end of all epochs, and only then."""
        if not self._is_owner:  # and none of the owner's locks is touched: it may have been forked while held
            return self._iterator_here().next()
        with self._fetch_lock:
            return self._iterator_here().next()

    def __iter__(self) -> Iterator[int]:
        """All records that come to this worker, to the last: batches are as short as need be."""
        if self._is_owner:
            self.deliver_tail()
        while True:
            try:
                index = self.fetch_record_index()
            except StopIteration:
                return
            yield index

    def report_batch_done(self, batch_size: int | None = None) -> bool:
        """The next `batch_size` records that were handed out are done; None: the next batch, or what is left of it.

        For training without a controller."""
        if self._in_steps:
            log.debug("dataset %s: the controller reports what is done", self.dataset_name)
            return True
        self._work().report(batch_size)
        return True

    @property
    def left_out(self) -> list[LeftOut]:
        """Samples at the ends of epochs that no worker got, since a loader would have dropped the short batch."""
        return list(self._leases.left_out) if self._leases is not None else []

    @property
    def is_end(self) -> bool:
        """All samples of all epochs are done, says the coordinator. Without one: those of this worker."""
        return self._leases is not None and self._leases.is_end

    def close(self) -> None:
        """Send the pending reports, give back unused samples, end."""
        if not self._is_owner or self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        if self._leases is not None:
            self._leases.close()
            self._leases.give_up(
                UsageError(
                    f"the RecordIndexService of dataset {self.dataset_name} was closed", code="record-service-closed"
                )
            )
        self._server.close()

    # --- checkpoints --------------------------------------------------------------------------------------

    def state_dict(self, usage: Iterable[wire.LeasePart] = ()) -> dict[str, Any]:
        """What is done, to be saved with the model. `usage`: what is in the model already and not reported yet."""
        return {
            "dataset": self.dataset_name,
            "checkpoint": asdict(self._leasing().checkpoint()),
            "usage": [[part.start, part.start + part.count] for part in usage],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """From now on that is done and nothing else. A newcomer to a running job leaves it as it is.

        An empty state: nothing is done."""
        spec = self._spec
        saved = wire.ShardCheckpoint(size=spec.size, shuffle=spec.shuffle, seed=spec.seed, done=[], bad_shards=[])
        if state:
            saved = wire.from_json(wire.ShardCheckpoint, dict(state["checkpoint"]))
        usage = state.get("usage", [])
        done = merged((start, stop) for start, stop in [*saved.done, *usage])
        self._saved = replace(saved, done=[list(each) for each in done])
        if self._leases is not None:
            self._restore()

    def get_shard_checkpoint(self) -> str:
        return json.dumps(self.state_dict())

    def restore_shard_from_checkpoint(self, text: str) -> bool:
        self.load_state_dict(json.loads(text))
        return True

    # --- the controller's side ----------------------------------------------------------------------------

    def join_steps(self, is_newcomer: bool, generation: int = 0) -> None:
        """From now on records are used in steps that workers take together; one without records gets ghosts."""
        self._in_steps, self._is_newcomer = True, is_newcomer
        self._first_generation = self._first_generation or generation
        if self._batches is not None and self._leases is not None:
            with self._leases.changed:
                self._batches.in_steps = True
                self._leases.changed.notify_all()

    def take(self) -> RecordBatch:
        """What the coming call of the training function trains on. Call `regrouped` first."""
        return self._work().take()

    def holds(self, batch: RecordBatch) -> bool:
        """Whether the samples of a batch that was taken are this worker's still. Waits for an answer on it."""
        return self._leasing().still_holds(batch.parts)

    def regrouped(self, generation: int, done: Sequence[wire.LeasePart], settles: bool) -> None:
        """A new generation has settled; `done`: what is in steps that all hold, also of workers that are gone."""
        self._leasing().regroup(generation, done, settles=settles)

    def report(self, done: Sequence[wire.LeasePart], generation: int, on_durable: Callable[[], None]) -> None:
        """In the background; `on_durable` is called there, when it cannot be lost any more."""
        self._leasing().report(done, on_durable)

    def fail(self, batch: RecordBatch, reason: str) -> None:
        """A batch that was taken could not be trained on: its samples are leased again, until they fail too often."""
        failed = [wire.FailedPart(lease=p.lease, start=p.start, count=p.count, reason=reason) for p in batch.parts]
        self._leasing().fail(failed)

    @property
    def is_shared(self) -> bool:
        """Whether a coordinator leases to all workers; else each worker serves itself."""
        return env.coordinator_url() is not None

    @property
    def has_ended(self) -> bool:
        """Whether all have agreed on it: no worker trains on a ghost that comes out after that."""
        return self._batches is not None and self._batches.has_ended

    def end(self) -> None:
        """All have agreed that it is the end: StopIteration from now on. A ghost that is under way still comes out."""
        self._work().end()

    def give_up(self, error: BaseException) -> None:
        """Raise this where records are waited for, here and in loaders' processes."""
        self._leasing().give_up(error)

    # --- for ShardDataset ---------------------------------------------------------------------------------

    def deliver_tail(self) -> None:
        """The reader of these records can take a short batch."""
        self._delivers_tail = True
        if self._leases is not None:
            self._leases.delivers_tail = True

    def batches(self) -> IndexBatches:
        """Whole batches, in the process that asks for them."""
        if self._is_owner:
            return IndexBatches(_LocalBatches(self))
        hello = hello_of_this_process()
        source = RemoteBatches(LoaderClient(self._address, hello))
        return IndexBatches(source, process=hello.process, num_processes=hello.num_processes)

    # --- inside -------------------------------------------------------------------------------------------

    @property
    def _is_owner(self) -> bool:
        return self._owner == os.getpid()

    def _work(self) -> LoaderBatches:
        """Begin, at the first use."""
        if not self._is_owner:
            raise UsageError(
                f"only the process that made the RecordIndexService of dataset {self.dataset_name} can do that",
                hint="in a loader's process, only take records",
                code="record-service-not-owner",
            )
        with self._begin_lock:
            if self._batches is None:
                self._begin(open_lease_source(self.dataset_name, self._spec))
            assert self._batches is not None
            return self._batches

    def _leasing(self) -> Leases:
        self._work()
        assert self._leases is not None
        return self._leases

    def _begin(self, source: LeaseSource) -> None:
        spec = self._spec
        self._leases = Leases(source, self.dataset_name, self.batch_size, delivers_tail=self._delivers_tail)
        self._restore()
        records = Records(spec.size, shuffle=spec.shuffle, seed=spec.seed)
        batches = LoaderBatches(self._leases, records, self.dataset_name, self.batch_size)
        batches.in_steps = self._in_steps
        self._batches = batches
        self._leases.start()

    def _restore(self) -> None:
        saved, self._saved = self._saved, None
        if saved is None or self._leases is None:
            return
        if self._is_newcomer:
            log.info("dataset %s: not restored: this worker joins a running job", self.dataset_name)
            return
        # All workers of a start restore the same: that has one effect. The next start may do so again.
        start = f"{env.num_restarts()} {self._first_generation}"
        text = f"{start} {self.dataset_name} {json.dumps(asdict(saved), sort_keys=True)}"
        request = hashlib.sha256(text.encode()).hexdigest()
        self._leases.restore(wire.RestoreShards(request=request, checkpoint=saved))

    def _new_key(self) -> Key:
        return next(self._groups), 0

    def _answer(self, group: int, request: Answer) -> Answer:
        """A loader's process asks; in a thread of its own."""
        key, number = (group, int(request["iteration"])), int(request["number"])
        batches = self._work()
        if request["do"] == "abandon":
            batches.abandon(key, number)
        elif request["do"] == "amend":
            batches.amend(key, number, [(int(offset), str(reason)) for offset, reason in request["failed"]])
        else:
            found = batches.obtain(key, number)
            if found is None:
                return {"end": True}
            return {"indices": found[1], "is_ghost": found[0].is_ghost}
        return {}

    def _iterator_here(self) -> RecordIterator:
        if self._iterator is None or self._iterator[0] != os.getpid():
            self._iterator = (os.getpid(), self._new_iterator())
        return self._iterator[1]

    def _new_iterator(self) -> RecordIterator:
        if self._is_owner:
            return RecordIterator(_LocalBatches(self), self.batch_size)
        hello = hello_of_this_process()
        source = RemoteBatches(LoaderClient(self._address, hello))
        return RecordIterator(source, self.batch_size, process=hello.process, num_processes=hello.num_processes)


class _LocalBatches:
    """Batches for the process that owns the leases."""

    def __init__(self, service: RecordIndexService) -> None:
        self._service = service
        self._key: Key = (-1, 0)

    def begin(self) -> None:
        self._key = self._service._new_key()

    def obtain(self, number: int) -> Obtained | None:
        found = self._service._work().obtain(self._key, number)
        return None if found is None else Obtained(number=number, indices=found[1], is_ghost=found[0].is_ghost)

    def abandon(self, number: int) -> None:
        self._service._work().abandon(self._key, number)

    def amend(self, number: int, failed: Sequence[tuple[int, str]]) -> None:
        self._service._work().amend(self._key, number, failed)

    def close(self) -> None: ...


def _next_name() -> str:
    number = next(_unnamed)
    return f"records-{number}" if number else "records"


def _check(
    batch_size: int, num_epochs: int | None, dataset_size: int | None, per_shard: int | None, on_bad_shard: str
) -> None:
    if batch_size < 1:
        raise UsageError(
            f"batch_size={batch_size}: a batch has at least 1 record",
            hint="pass the loader's batch_size",
            code="records-batch-size-not-positive",
        )
    if dataset_size is None or dataset_size < 1:
        raise UsageError(
            f"dataset_size={dataset_size}: there must be records",
            hint="pass len(dataset)",
            code="dataset-size-not-positive",
        )
    if num_epochs is not None and num_epochs < 1:
        raise UsageError(
            f"num_epochs={num_epochs}: there is at least 1 epoch", hint="None is 1", code="num-epochs-not-positive"
        )
    if per_shard is not None and per_shard < 1:
        raise UsageError(
            f"num_minibatches_per_shard={per_shard}: a shard has at least 1 batch",
            hint="None is 8",
            code="batches-per-shard-not-positive",
        )
    if on_bad_shard not in (wire.STOP, wire.SKIP):
        raise UsageError(
            f"on_bad_shard={on_bad_shard!r}", hint=f'it is "{wire.STOP}" or "{wire.SKIP}"', code="on-bad-shard-unknown"
        )
