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
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from everstep import env, wire
from everstep.data.batches import LoaderBatches
from everstep.data.held_leases import RecordBatch
from everstep.data.leases import Leases
from everstep.data.loader_server import (
    Answer,
    IndexBatches,
    LoaderClient,
    LoaderServer,
    RecordIterator,
    hello_of_this_process,
)
from everstep.data.local_leases import LocalLeases
from everstep.errors import UsageError
from everstep.ranges import merged

if TYPE_CHECKING:
    from everstep.client.calls import Coordinator  # httpx: not needed by a worker that is alone

log = logging.getLogger("everstep")

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
        self._is_outside = False  # True: this worker takes no steps yet, so it leases nothing
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
    def left_out(self) -> list[RecordBatch]:
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
            what = f"the RecordIndexService of dataset {self.dataset_name}"
            self._leases.give_up(UsageError(f"{what} was closed", code="record-service-closed"))
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

    def rehearse(self) -> None:
        """Make the next batch a ghost: this worker has yet to join those that take steps."""
        with self._begin_lock:
            self._is_outside = self._batches is None or self._is_outside
        self._work().rehearse()

    def join_steps(self, is_newcomer: bool, generation: int = 0) -> None:
        """From now on records are used in steps that workers take together; one without records gets ghosts."""
        self._in_steps, self._is_newcomer = True, is_newcomer
        self._first_generation = self._first_generation or generation
        with self._begin_lock:
            is_first, self._is_outside = self._is_outside and self._batches is not None, False
        if is_first:
            self._start()
        if self._batches is not None and self._leases is not None:
            with self._leases.changed:
                self._batches.in_steps = True
                self._leases.changed.notify_all()

    def take(self) -> RecordBatch:
        """What the coming call of the training function trains on. Call `regrouped` first."""
        return self._work().take()

    def regrouped(self, generation: int, done: Sequence[wire.LeasePart], settles: bool) -> None:
        """A new generation has settled; `done`: what is in steps that all hold, also of workers that are gone."""
        self._leasing().regroup(generation, done, settles=settles)

    def report(self, done: Sequence[wire.LeasePart], on_durable: Callable[[], None] | None = None) -> None:
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

    # --- for ShardDataset ---------------------------------------------------------------------------------

    def deliver_tail(self) -> None:
        """The reader of these records can take a short batch."""
        self._delivers_tail = True
        if self._leases is not None:
            self._leases.delivers_tail = True

    def batches(self) -> IndexBatches:
        """Whole batches, in the process that asks for them."""
        if self._is_owner:
            groups: defaultdict[int, int] = defaultdict(lambda: next(self._groups))  # one for each iteration
            return IndexBatches(lambda request: self._answer(groups[request["iteration"]], request), lambda: None)
        hello = hello_of_this_process()
        client = LoaderClient(self._address, hello)
        return IndexBatches(client.ask, client.close, process=hello.process, num_processes=hello.num_processes)

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
                self._begin(*_open_coordinator(self.dataset_name, self._spec))
            assert self._batches is not None
            return self._batches

    def _leasing(self) -> Leases:
        self._work()
        assert self._leases is not None
        return self._leases

    def _begin(self, coordinator: Coordinator | LocalLeases, worker: str | None) -> None:
        self._leases = Leases(coordinator, worker, self.dataset_name, self._spec)
        self._leases.delivers_tail = self._delivers_tail
        self._batches = LoaderBatches(self._leases, self.dataset_name, self._spec)
        self._batches.in_steps = self._in_steps
        if not self._is_outside:
            self._start()

    def _start(self) -> None:
        assert self._leases is not None
        self._restore()
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

    def _answer(self, group: int, request: Answer) -> Answer:
        """A process asks, a loader's in a thread of its own. {}: the end of the data, or nothing to say."""
        key, number = (group, int(request["iteration"])), int(request["number"])
        batches = self._work()
        if request["do"] == "abandon":
            batches.abandon(key, number)
        elif request["do"] == "amend":
            batches.amend(key, number, [(int(offset), str(reason)) for offset, reason in request["failed"]])
        elif found := batches.obtain(key, number):
            return {"indices": found[1], "is_ghost": found[0].is_ghost}
        return {}

    def _iterator_here(self) -> RecordIterator:
        if self._iterator is None or self._iterator[0] != os.getpid():
            self._iterator = (os.getpid(), RecordIterator(self.batches(), self.batch_size))
        return self._iterator[1]


def _open_coordinator(dataset: str, spec: wire.DatasetSpec) -> tuple[Coordinator | LocalLeases, str | None]:
    """Where this process gets leases, by its environment, and its worker's name there."""
    url = env.coordinator_url()
    if url is None:
        return LocalLeases(dataset, spec, rank=env.torchrun_rank(), num_workers=env.torchrun_size()), None
    from everstep.client.calls import Coordinator

    token, worker = env.token(), env.worker()
    if token is None:
        raise UsageError(
            f"{env.COORDINATOR}={url} is set, but no token",
            hint=f"set {env.TOKEN_FILE} to the coordinator's token file (mode 0600), or {env.TOKEN}",
            code="lease-token-missing",
        )
    if not worker:
        raise UsageError(
            f"{env.COORDINATOR} is set, but not {env.WORKER}",
            hint="start the script with `everstep run`",
            code="lease-worker-name-missing",
        )
    return Coordinator(url, token, env.job()), worker


def _next_name() -> str:
    number = next(_unnamed)
    return f"records-{number}" if number else "records"


def _check(
    batch_size: int, num_epochs: int | None, dataset_size: int | None, per_shard: int | None, on_bad_shard: str
) -> None:
    if dataset_size is None or dataset_size < 1:
        raise UsageError(
            f"dataset_size={dataset_size}: a dataset has at least 1",
            hint="len(dataset)",
            code="dataset-size-not-positive",
        )
    for name, number, least, hint, code in (
        ("batch_size", batch_size, "a batch has", "pass the loader's batch_size", "records-batch-size-not-positive"),
        ("num_epochs", num_epochs, "there is", "None is 1", "num-epochs-not-positive"),
        ("num_minibatches_per_shard", per_shard, "a shard has", "None is 8", "batches-per-shard-not-positive"),
    ):
        if number is not None and number < 1:
            raise UsageError(f"{name}={number}: {least} at least 1", hint=hint, code=code)
    if on_bad_shard not in (wire.STOP, wire.SKIP):
        raise UsageError(
            f"on_bad_shard={on_bad_shard!r}", hint=f'it is "{wire.STOP}" or "{wire.SKIP}"', code="on-bad-shard-unknown"
        )
