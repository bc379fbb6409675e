"""One attempt to sum one step over one generation: what workers tell each other, and when the result counts.

The header precedes the first bucket, because owners of slices need the total weight before they divide. The pulse
follows once this worker's part has succeeded. `BucketSums` moves the buckets. One thread runs one static schedule.
Results go to buffers that no other code reads until `finish` returns, so after a loss nothing has been applied."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from everstep.engine.bucket_sums import BucketSums, SumTask
from everstep.engine.group import TAG_HEADER, TAG_PULSE, gloo_words
from everstep.engine.pulse import ENDS, Header, Pulse, first_with_weight, header_bytes, pulse_bytes, total_weight
from everstep.engine.swap import Swap
from everstep.errors import PeerLost


class Reduction:
    """`ready` and `flush` are called during backward; `finish` waits; `abort` may come at any time."""

    def __init__(self, task: SumTask, way: BucketSums) -> None:
        self.task = task
        self.way = way
        self._changed = threading.Condition()
        self._ready = [False] * len(task.layout.buckets)
        self._pulse: Pulse | None = None
        self._pulses: list[Pulse] = []
        self._failure: BaseException | None = None
        self._is_aborted = False
        self._is_waiting = False  # inside a call to gloo or the device that may never return (group.py)
        self._is_left_behind = False
        self.is_done = False
        self.buffers: Tensor | None = None  # as bytes: what all take; None: no leaf has weight, or there are none
        self._world = task.group.world
        self._headers: list[Header] = []
        self._weight = 0.0  # of all leaves
        self._take_headers: Callable[[], list[bytes]] | None = None
        self._open: dict[int, dist.Work] = {}  # posted and not waited for; waiting twice would never end
        self._keep: list[Swap] = []  # small messages, alive until their work has ended

    # --- called by the engine -------------------------------------------------------------------------

    def ready(self, bucket: int) -> None:
        self.way.depart(bucket)
        with self._changed:
            self._ready[bucket] = True
            self._changed.notify_all()

    def flush(self, pulse: Pulse) -> None:
        """All of this worker's sums are complete."""
        for bucket, is_ready in enumerate(self._ready):
            if not is_ready:
                self.ready(bucket)
        self.way.complete()
        with self._changed:
            self._pulse = pulse
            self._changed.notify_all()

    def abort(self) -> None:
        with self._changed:
            self._is_aborted = True
            self._changed.notify_all()

    def finish(self) -> list[Pulse]:
        """Wait for the sum; PeerLost if the generation broke. Afterwards all memory given to it is free."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_done or self._is_aborted)
        if not self.is_done:
            self.task.group.make_still()
            with self._changed:
                self._changed.wait_for(lambda: self.is_done, self.way.drain_s)
                self._changed.wait_for(lambda: self.is_done or self._is_waiting)
                self._is_left_behind = not self.is_done
        if self._failure is not None:
            raise self._failure
        if not self.is_done:
            raise self._closed()
        return self._pulses

    # --- runs in the communication thread ---------------------------------------------------------------

    def run(self) -> None:
        try:
            self._run()
        except torch.OutOfMemoryError as error:
            self._failure = error
        except (RuntimeError, OSError) as error:  # gloo's, or NCCL's
            broken = f"generation {self._world.generation} is broken: {gloo_words(error)}"
            self._failure = PeerLost(broken, code="sum-broken")
            self._failure.__cause__ = error
        except BaseException as error:  # ours: to do it again would not help
            self._failure = error
        finally:
            if self._failure is not None:
                self.task.group.make_still()
            self.way.end()
            with self._changed:
                self.is_done = True
                self._changed.notify_all()

    def _run(self) -> None:
        sizes = [header_bytes(len(self.task.header.weights))] * self._world.size
        self._take_headers = self._swap(self.task.header.pack(), sizes, TAG_HEADER)
        self.way.run(self)
        self._await(lambda: self._pulse is not None)
        owner = first_with_weight(self.headers())
        if owner is not None and self.task.buffers.own is not None:
            self.buffers = self.way.share(owner)
        self.way.make_certain()
        take_pulses = self._post_pulse()
        self.way.collect()
        pulses = take_pulses()
        self.wait(list(self._open.values()))
        self._pulses = pulses

    def headers(self) -> list[Header]:
        if self._take_headers is not None:
            headers = [Header.unpack(raw) for raw in self._take_headers()]
            ended = [rank for rank, header in enumerate(headers) if header.kind == ENDS]
            if ended:
                raise PeerLost(f"rank {', '.join(map(str, ended))} ended; the others continue", code="peer-ended")
            self._weight, self._headers, self._take_headers = total_weight(headers), headers, None
        return self._headers

    def total(self) -> float:
        """The weight of all leaves."""
        self.headers()
        return self._weight

    def _post_pulse(self) -> Callable[[], list[Pulse]]:
        assert self._pulse is not None
        sizes = [pulse_bytes(self.task.num_parameters, header.note_bytes) for header in self.headers()]
        raws = self._swap(self._pulse.pack(), sizes, TAG_PULSE)
        return lambda: [Pulse.unpack(raw) for raw in raws()]

    def await_bucket(self, bucket: int, *, block: bool = True) -> bool:
        return self._await(lambda: self._ready[bucket], block=block)

    def _await(self, is_there: Callable[[], bool], *, block: bool = True) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: is_there() or not block or self._is_aborted)
            if self._is_aborted:
                raise self._closed()
            return is_there()

    def _swap(self, own: bytes, sizes: Sequence[int], tag: int) -> Callable[[], list[bytes]]:
        """Send a small message to all; calling the result waits for all of theirs, by rank."""
        swap = Swap(self.task.group, own, sizes, tag)
        self._open |= {id(work): work for work in swap.works}
        self._keep.append(swap)

        return lambda: swap.arrived(self.wait)

    def send(self, tensor: Tensor, peer: int, tag: int) -> dist.Work:
        work = self.task.group.send(tensor, peer, tag)
        self._open[id(work)] = work
        return work

    def recv(self, tensor: Tensor, peer: int, tag: int) -> dist.Work:
        work = self.task.group.recv(tensor, peer, tag)
        self._open[id(work)] = work
        return work

    def wait(self, works: Sequence[dist.Work]) -> None:
        for work in works:
            del self._open[id(work)]
        self.wait_in(lambda: self.task.group.wait_here(works))

    def wait_in(self, call: Callable[[], None]) -> None:
        """Make a call that may never return."""
        self._set_waiting(True)
        call()
        self._set_waiting(False)

    def _set_waiting(self, is_waiting: bool) -> None:
        with self._changed:
            if self._is_left_behind:  # and comes back after all: the memory is in others' hands
                raise self._closed()
            self._is_waiting = is_waiting
            self._changed.notify_all()

    def _closed(self) -> PeerLost:
        return PeerLost(f"generation {self._world.generation} was closed", code="sum-closed")
