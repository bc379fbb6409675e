"""The sum over all workers, from the first bucket that is ready to the mean, and all memory that it is made in.

Made once, when the parameters are known; each attempt to sum a step is a Reduction, run by the communication thread. An
attempt that failed is dropped, and so is its thread: it may be stuck inside gloo. Another takes over."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from everstep.engine import background
from everstep.engine.bucket_sums import BucketSums, SumTask
from everstep.engine.buckets import BucketLayout, Flats
from everstep.engine.device_sum import DeviceWay
from everstep.engine.group import Group
from everstep.engine.host_sum import HostSum, HostWay
from everstep.engine.leaf_sums import ExactFold, FastFold, Fold, Target
from everstep.engine.level_sum import LevelSum
from everstep.engine.mean import divide
from everstep.engine.module_buffers import ModuleBuffers
from everstep.engine.plan import Plan
from everstep.engine.pulse import Header, Pulse
from everstep.engine.reduction import Reduction
from everstep.engine.shared_memory import SMALL_BYTES, needed_bytes
from everstep.errors import PeerLost


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
        self._parameters = parameters
        self._host: HostWay | None = HostWay(layout, parameters) if layout.is_on_host else None
        self._device: DeviceWay | None = None
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
        task = SumTask(
            group=group,
            layout=self.layout,
            num_leaves=num_leaves,
            nodes=nodes,
            sums=self.fold.sums(group.world.rank, target),
            header=header,
            num_parameters=len(self._parameters),
            buffers=buffers,
            is_exact=self.fold.is_exact,
        )
        self._reduction = Reduction(task, self._attempt(task))
        self._thread.take(self._reduction)

    def _attempt(self, task: SumTask) -> BucketSums:
        if (link := task.group.link) is not None:
            self._device = self._device or DeviceWay(self.layout, self._parameters)
            return self._device.attempt(task, link)
        self._host = self._host or HostWay(self.layout, self._parameters)
        if (levels := task.group.levels) is not None:
            return LevelSum(task, self._host, levels)
        return HostSum(task, self._host)

    def ready(self, bucket: int) -> None:
        if self._reduction is not None:
            self._reduction.ready(bucket)

    def finish(self, pulse: Pulse, *, is_closed: bool) -> Summed:
        """Wait until the mean is there; PeerLost if the generation is over before."""
        reduction = self._reduction
        assert reduction is not None
        reduction.flush(pulse)
        if is_closed:
            reduction.abort()
        pulses = reduction.finish()
        return Summed(pulses=pulses, total=reduction.total(), means=reduction.way.means, buffers=reduction.buffers)

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
        """Give up a failed attempt. Its memory is free again, but its thread is not reused: the thread may be stuck.
        And if NCCL failed between the start and the end of grouped operations, the group stays open in that thread, so
        operations queued there later would never run, but would seem to have run."""
        reduction, self._reduction = self._reduction, None
        if reduction is None:
            return
        if not reduction.is_done:
            reduction.abort()
            with contextlib.suppress(PeerLost):
                reduction.finish()
        self._thread.leave_behind()
        self._thread = CommunicationThread()

    def forget(self) -> None:
        """The step is committed."""
        self._reduction = None

    def keep_neighbors(self, group: Group) -> None:
        """Others' memory need not stay mapped."""
        if self._host is not None:
            self._host.shelf.keep({neighbor.pid for neighbor in group.neighbors.values()})

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

    def leave_behind(self) -> None:
        """Let the thread end if its current reduction ever does."""
        self._todo.put(None)

    def close(self) -> None:
        """Ends after its present reduction. A thread stuck in a broken operation is abandoned; it is a daemon."""
        if self._thread is not None:
            self._todo.put(None)
            self._thread.join(timeout=5)
            self._thread = None

    def _work(self) -> None:
        while (reduction := self._todo.get()) is not None:
            reduction.run()
