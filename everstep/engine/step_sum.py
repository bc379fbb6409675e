"""The sum over all workers, from the first bucket that is ready to the mean, and all memory that it is made in.

Made once, when the parameters are known; each attempt to sum a step is a Reduction, run by the communication thread. An
attempt that failed is dropped; if its thread is stuck inside gloo it is abandoned and another takes over."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from everstep.engine import background
from everstep.engine.buckets import BucketLayout, Flats
from everstep.engine.group import Group
from everstep.engine.host_staging import CudaStaging, HostStaging
from everstep.engine.leaf_sums import ExactFold, FastFold, Fold, Target
from everstep.engine.mean import divide
from everstep.engine.module_buffers import ModuleBuffers
from everstep.engine.plan import Plan
from everstep.engine.pulse import Header, Pulse
from everstep.engine.reduction import Reduction, Scratch, Task
from everstep.engine.shared_memory import SMALL_BYTES, Shelf, needed_bytes, shared_tensors
from everstep.errors import PeerLost, UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Summed:
    """What a step has come to, the same on all workers."""

    pulses: Sequence[Pulse]  # by rank
    total: float  # weight of all leaves
    means: Flats
    buffers: Tensor | None  # the model's, as bytes; None: they stay as they were before the step


class Sum:
    def __init__(
        self, parameters: Sequence[nn.Parameter], layout: BucketLayout, *, num_leaves: int, is_exact: bool
    ) -> None:
        def make() -> Flats:
            return Flats(layout, parameters)

        self.layout = layout
        self.fold: Fold = ExactFold(num_leaves, make) if is_exact else FastFold(make)
        self.result = Flats(layout, parameters, is_private=True)  # users may write to their gradients
        self._num_parameters = len(parameters)
        self._outbox, self._scratch, self._shelf = shared_tensors(layout.shapes), Scratch(layout), Shelf()
        self._staging = _make_staging(layout)
        self._thread = CommunicationThread()
        self._reduction: Reduction | None = None
        if layout.is_on_host and needed_bytes(layout.shapes) <= SMALL_BYTES:
            background.start("everstep-spare", self.fold.make_spare)

    @property
    def is_under_way(self) -> bool:
        return self._reduction is not None

    def launch(self, group: Group, plan: Plan, target: Target | None, header: Header, buffers: ModuleBuffers) -> None:
        """Begin an attempt; `target` is the leaf that backward is about to fill, if any."""
        num_leaves, nodes = self.fold.tree(plan)
        task = Task(
            group=group,
            layout=self.layout,
            num_leaves=num_leaves,
            nodes=nodes,
            sums=self.fold.sums(group.world.rank, target),
            header=header,
            num_parameters=self._num_parameters,
            buffers=buffers,
            outbox=self._outbox,
            shelf=self._shelf,
        )
        self._reduction = Reduction(task, self.result, self._staging, self._scratch)
        self._thread.take(self._reduction)

    def ready(self, bucket: int) -> None:
        if self._reduction is not None:
            self._reduction.ready(bucket)

    def finish(self, pulse: Pulse, *, is_closed: bool) -> Summed:
        """Wait until the mean is there; PeerLost if the generation is over before."""
        assert self._reduction is not None
        self._reduction.flush(pulse)
        if is_closed:
            self._reduction.abort()
        pulses = self._reduction.finish()
        return Summed(pulses=pulses, total=self._reduction.total, means=self.result, buffers=self._reduction.buffers)

    def finish_alone(self, pulse: Pulse, total: float, buffers: ModuleBuffers) -> Summed:
        """One worker holds the whole tree: divide in place."""
        (sums,) = self.fold.sums(0, None).values()
        for buffer in sums.buffers:
            divide(buffer, total)
        return Summed(pulses=[pulse], total=total, means=sums, buffers=buffers.own if total else None)

    def abort(self, generation: int) -> None:
        """From any thread: end all waiting for the sum of this generation, or of an earlier one."""
        if (reduction := self._reduction) is not None and reduction.task.group.world.generation <= generation:
            reduction.abort()

    def drop(self) -> None:
        """Give a failed attempt up. Its memory is free again; its thread may be stuck, and is then abandoned."""
        reduction, self._reduction = self._reduction, None
        if reduction is None or reduction.is_done:
            return
        reduction.abort()
        try:
            reduction.finish()
        except PeerLost:
            pass
        if not reduction.is_done:
            self._thread = CommunicationThread()

    def forget(self) -> None:
        """The step is committed."""
        self._reduction = None

    def keep_neighbors(self, group: Group) -> None:
        """Others' memory need not stay mapped."""
        self._shelf.keep({neighbor.pid for neighbor in group.neighbors.values()})

    def close(self) -> None:
        self._thread.close()


class CommunicationThread:
    """The one of a worker: runs reductions one after the other, each to its end."""

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[Reduction | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def take(self, reduction: Reduction) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="everstep-communication", daemon=True)
            self._thread.start()
        self._todo.put(reduction)

    def close(self) -> None:
        """Ends after its present reduction. A thread stuck in a broken operation is abandoned; it is a daemon."""
        if self._thread is not None:
            self._todo.put(None)
            self._thread.join(timeout=5)
            self._thread = None

    def _work(self) -> None:
        while (reduction := self._todo.get()) is not None:
            reduction.run()


def _make_staging(layout: BucketLayout) -> HostStaging:
    devices = {bucket.device for bucket in layout.buckets}
    if all(device.type == "cpu" for device in devices):
        return HostStaging()
    if len(devices) > 1:
        raise UsageError(
            f"parameters are on {sorted(map(str, devices))}",
            hint="one worker trains on one device",
            code="parameters-on-several-devices",
        )
    return CudaStaging(layout, devices.pop())
