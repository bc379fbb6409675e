"""Copy a state beside the training: the gate holds back changes of its sources.

One thread copies, without the GIL and without torch's other threads. From a GPU the bytes travel on a stream of their
own into memory that is registered with CUDA once its pages exist; only the GPU's next change of the parameters waits.
Where CUDA refuses to register it, copies go through CUDA's own small buffers: slower, and still beside training."""

from __future__ import annotations

import ctypes
import functools
import logging
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from everstep.checkpoint.copy_gate import GATE
from everstep.checkpoint.memory import GrowingBlock
from everstep.checkpoint.state_snapshot import StateSnapshot
from everstep.errors import CheckpointFailed

log = logging.getLogger("everstep")

Pairs = Sequence[tuple[Tensor, Tensor]]  # where to, and from where


class Copy:
    """One state on its way into memory. `pairs` and `then` are called in the copier's thread: the first gives targets
    and sources, which are tensors of the snapshot or views of them; the second gets the end, or the failure."""

    def __init__(
        self,
        snapshot: StateSnapshot,
        pairs: Callable[[], Pairs],
        then: Callable[[BaseException | None], None],
    ) -> None:
        self._snapshot, self._pairs, self._then = snapshot, pairs, then
        self._is_queued = threading.Event()
        self._arrivals: list[torch.cuda.Event] = []

    def wait_for_change(self) -> None:
        """On the host until all from its memory is copied, on the GPU until all from there is."""
        self._is_queued.wait()
        for arrival in self._arrivals:
            torch.cuda.current_stream(arrival.device).wait_event(arrival)

    def run(self) -> None:
        problem: BaseException | None = None
        try:
            self._copy()
        except BaseException as error:
            problem = error
        finally:
            self._is_queued.set()
            GATE.release(self)
            self._then(problem)

    def _copy(self) -> None:
        snapshot = self._snapshot
        pairs = self._pairs()
        on_gpu = [pair for pair in pairs if pair[1].is_cuda]
        on_host = [pair for pair in pairs if not pair[1].is_cuda]
        if on_gpu:
            self._arrivals = [_send_home(pairs, snapshot.events) for pairs in _by_device(on_gpu)]
        if on_host:
            torch._foreach_copy_([target for target, _ in on_host], [source for _, source in on_host])
        # On a GPU a step may be queued as soon as the copies are: only earlier changes can be distinguished from it.
        changed = [
            tensor
            for tensor, version in zip(snapshot.late, snapshot.versions, strict=True)
            if tensor._version != version
        ]
        self._is_queued.set()
        for arrival in self._arrivals:
            arrival.synchronize()
        if changed:
            GATE.distrust(changed)
            raise CheckpointFailed(
                "a checkpoint was dropped: parameters were changed in place while they were copied "
                f"({len(changed)} tensors, the first of shape {tuple(changed[0].shape)})",
                hint="from now on they are copied before save() returns; change parameters only by an optimizer",
                kind="Changed",
                code="checkpoint-changed-while-copied",
            )


class Copier:
    """One thread that copies, one state after the other. It ends with `close`, or when this object is garbage."""

    def __init__(self) -> None:
        self._copies: queue.SimpleQueue[Copy | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def open(self) -> None:
        """Have the thread ready."""
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(target=_work, args=(self._copies,), name="everstep copier", daemon=True)
            self._thread.start()
            weakref.finalize(self, self._copies.put, None).atexit = False

    def start(self, copy: Copy) -> None:
        """From now on, changes of the sources wait."""
        self.open()
        GATE.hold(copy)
        self._copies.put(copy)

    def close(self) -> None:
        self._is_closed = True
        if self._thread is not None:
            self._copies.put(None)
            self._thread.join()
            self._thread = None


def _work(copies: queue.SimpleQueue[Copy | None]) -> None:
    _use_one_thread()
    while (copy := copies.get()) is not None:
        with torch.no_grad():
            copy.run()
        del copy  # and with it the state, which may have no other reference


def _use_one_thread() -> None:
    """For the calling thread alone; torch.set_num_threads would affect all threads started from now on."""
    torch.get_num_threads()  # makes torch set its own number now, not after ours
    try:
        ctypes.CDLL(None).omp_set_num_threads(1)
    except AttributeError:  # a torch without OpenMP
        pass


def _by_device(pairs: Pairs) -> list[list[tuple[Tensor, Tensor]]]:
    devices: dict[Any, list[tuple[Tensor, Tensor]]] = {}
    for pair in pairs:
        devices.setdefault(pair[1].device, []).append(pair)
    return list(devices.values())


def _send_home(pairs: Pairs, begun: Sequence[Any]) -> torch.cuda.Event:
    """Queue copies from one GPU behind the work it had when the snapshot was taken; the event of their arrival."""
    device = pairs[0][1].device
    stream = _side_stream(device)
    with torch.cuda.device(device), torch.cuda.stream(stream):
        for event in begun:
            if event.device == device:
                stream.wait_event(event)
        for target, source in pairs:
            target.copy_(source, non_blocking=True)
        arrival = torch.cuda.Event()
        arrival.record(stream)
        return arrival


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


_PORTABLE = 1  # for all GPUs
_ALREADY = 712  # cudaErrorHostMemoryAlreadyRegistered


def pin(block: GrowingBlock) -> None:
    """Register the block with CUDA. Does nothing if no GPU is in use, or if it is registered."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized() or not block.size_bytes:
        return
    if block.pinned_bytes == block.size_bytes:
        return
    runtime = torch.cuda.cudart()
    address = block.address
    problem = int(runtime.cudaHostRegister(address, block.size_bytes, _PORTABLE))
    if problem not in (0, _ALREADY):
        log.warning("checkpoints: CUDA cannot pin %d bytes (error %d): raise `ulimit -l`", block.size_bytes, problem)
        return
    block.pinned_bytes = block.size_bytes
    block.before_unmap = lambda: runtime.cudaHostUnregister(address)
