"""From a state to its image in memory, and on to storage: everything that happens after save() returns.

The memory is the saver's where the node has one: the state outlives this worker, and the saver writes it. Elsewhere the
memory is private and a thread of this process writes. If the saver is lost, the thread takes over its writes."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from everstep import env
from everstep.checkpoint.copier import Copier, Copy, Pairs, pin
from everstep.checkpoint.copy_gate import GATE
from everstep.checkpoint.double_buffer import DoubleBuffer, Filling
from everstep.checkpoint.image import Description, ImageShare, pack, put_heads
from everstep.checkpoint.image_planner import ImagePlanner
from everstep.checkpoint.manifest import Manifest
from everstep.checkpoint.memory import GrowingBlock
from everstep.checkpoint.saver.client import SaverConnection, SaverGone
from everstep.checkpoint.saver.held_states import HeldFile
from everstep.checkpoint.saver.messages import BufferWritten
from everstep.checkpoint.state_snapshot import StateSnapshot
from everstep.checkpoint.write import Written, clear_away, put_part, write_image
from everstep.errors import CheckpointFailed
from everstep.storage.base import Storage

log = logging.getLogger("everstep.checkpoint")

_OWN_MEMORY = ("memory",)  # storages that no other process can reach


class SavePipeline:
    """For one storage. `reserve`, then `start`; the future is done when the state is durable, or cannot be."""

    def __init__(self, storage: Storage, is_abandoned: Callable[[Manifest], bool]) -> None:
        """`is_abandoned`: whether the missing shares of a save will never come."""
        self._storage, self._is_abandoned = storage, is_abandoned
        self._copier = Copier()
        self._planner = ImagePlanner(storage.file_bytes)
        self._outstanding: set[Future[Written]] = set()
        self._changed = threading.Condition()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="everstep-checkpoint")
        _finish_at_exit(self)
        self._line: SaverConnection | None = None
        self._buffers = self._open_buffers()
        GATE.hang()
        GATE.tell_size(self._get_ready)

    def expect(self, image_bytes: int) -> None:
        """States of about this size will come."""
        self._buffers.expect(image_bytes)

    def _get_ready(self, image_bytes: int) -> None:
        """Training has begun."""
        self.expect(image_bytes)
        self._copier.open()

    def reserve(self, *, may_wait: bool) -> int | None:
        """A buffer, or None if the last states are still being written."""
        return self._buffers.reserve(may_wait=may_wait)

    def start(
        self,
        index: int,
        snapshot: StateSnapshot,
        share: ImageShare,
        manifest: Manifest,
        *,
        will_be_written: bool,
        note: Callable[[Future[Written]], None],
    ) -> Future[Written]:
        """Copy beside training, then write the state, or just keep it in memory. `note` gets the result."""
        save = _Save(index, snapshot, share, manifest)
        with self._changed:
            self._outstanding.add(save.done)
        save.done.add_done_callback(note)
        save.done.add_done_callback(self._end)  # after it was noted

        def then(problem: BaseException | None) -> None:
            if problem is None:
                try:
                    self._hand_on(save, will_be_written)
                    return
                except Exception as error:  # or a waiting thread would wait forever, and so would the next save
                    problem = error
            self._buffers.release(index)
            save.done.set_exception(problem)

        copy = Copy(snapshot, lambda: self._begin(save), then)
        self._copier.start(copy)
        if snapshot.is_in_haste:
            copy.wait_for_change()
        return save.done

    def skip(self, description: Description) -> None:
        """Tell the other workers that this worker's share will not come."""
        self._thread.submit(put_part, self._storage, description, [], is_skipped=True)

    def run(self, action: Callable[[], None]) -> None:
        """Another call to the storage, in its turn."""
        self._thread.submit(action)

    def forget(self, step: int | None) -> None:
        """It was deleted from storage; None: all were."""
        if self._line is not None:
            with contextlib.suppress(SaverGone):
                self._line.forget(self._storage.uri, step)

    def held(self) -> list[HeldFile]:
        """Files of the states in the saver's memory."""
        if self._line is None:
            return []
        try:
            return self._line.held(self._storage.uri, is_patient=not env.is_one_node())
        except SaverGone:
            return []

    def close(self) -> None:
        """All saves are durable, or have failed, when this returns."""
        self.finish()
        self._copier.close()
        self._thread.shutdown(wait=True)
        if self._line is not None:
            self._line.close()
        self._planner.forget()
        self._buffers.close()

    def finish(self) -> None:
        """Wait until all saves are durable or have failed, and were noted."""
        with self._changed:
            self._changed.wait_for(lambda: not self._outstanding)

    def finish_at_exit(self) -> None:
        """While threads can still be started: storage drivers need some."""
        self.finish()
        self._thread.shutdown(wait=True)

    def _end(self, done: Future[Written]) -> None:
        with self._changed:
            self._outstanding.discard(done)
            self._changed.notify_all()

    # --- the saver ------------------------------------------------------------------------------------

    def _open_buffers(self) -> DoubleBuffer:
        uri = self._storage.uri
        path = env.saver(is_for_bucket="://" in uri)
        if path is None or uri.partition("://")[0] in _OWN_MEMORY:
            return DoubleBuffer(prepare=pin)
        try:
            line = SaverConnection(path, on_free=lambda index: self._buffers.release(index))
            files, busy = line.open_buffers(uri, env.place_on_node(), env.value(env.SAVER_OWNER) or "")
        except SaverGone as gone:
            log.warning("%s; checkpoints are written by this process and do not outlive it", gone.message)
            return DoubleBuffer(prepare=pin)
        self._line = line
        return DoubleBuffer([GrowingBlock(file) for file in files], busy=busy, prepare=pin)

    # --- in the copier's thread -----------------------------------------------------------------------

    def _begin(self, save: _Save) -> Pairs:
        assert save.snapshot is not None
        plan = self._planner.plan(save.snapshot, save.share)
        save.description = plan.layout.describe(save.manifest)
        save.filling = self._buffers.begin(
            save.index, save.manifest.step, description=pack(save.description), image_bytes=plan.layout.size_bytes
        )
        put_heads(plan.layout, save.filling.image)
        return self._planner.pairs(plan, save.filling)

    def _hand_on(self, save: _Save, will_be_written: bool) -> None:
        save.snapshot = None
        self._buffers.commit(save.filling, will_be_written=will_be_written)
        if not will_be_written:
            save.done.set_result(Written(step=save.manifest.step, size_bytes=len(save.filling.image), seconds=0.0))
        elif self._line is None or self._line.is_gone or not self._buffers.is_shared:
            self._thread.submit(self._write, save)
        else:
            self._line.write(save.index, save.filling.sequence, lambda outcome: self._note(save, outcome))

    # --- writing --------------------------------------------------------------------------------------

    def _note(self, save: _Save, outcome: BufferWritten) -> None:
        """The saver has written it, or not."""
        if outcome.cause == "SaverGone":
            self._thread.submit(self._write, save)
            return
        self._buffers.release(save.index)
        if outcome.problem:
            hint, kind = outcome.hint or None, outcome.cause
            save.done.set_exception(CheckpointFailed(outcome.problem, hint=hint, kind=kind, code="saver-write-failed"))
        else:
            save.done.set_result(Written(step=outcome.step, size_bytes=outcome.size_bytes, seconds=outcome.seconds))

    def _write(self, save: _Save) -> None:
        """In our own thread."""
        try:
            written = write_image(
                self._storage,
                save.description,
                save.filling.image,
                is_abandoned=lambda: self._is_abandoned(save.manifest),
            )
        except BaseException as error:
            self._buffers.release(save.index)
            save.done.set_exception(error)
            return
        self._buffers.release(save.index)
        save.done.set_result(written)
        clear_away(self._storage, written)


class _Save:
    """One state on its way: `description` and `filling` are set when it has a buffer."""

    description: Description
    filling: Filling

    def __init__(self, index: int, snapshot: StateSnapshot, share: ImageShare, manifest: Manifest) -> None:
        self.index, self.share, self.manifest = index, share, manifest
        self.snapshot: StateSnapshot | None = snapshot
        self.done: Future[Written] = Future()


_pipelines: weakref.WeakSet[SavePipeline] = weakref.WeakSet()
_owner = 0  # the process that the exit handler belongs to


def _finish_at_exit(pipeline: SavePipeline) -> None:
    global _owner
    if _owner != os.getpid():
        _owner = os.getpid()
        _pipelines.clear()
        # atexit would be too late: by then concurrent.futures takes no more work. The last to register runs first.
        threading._register_atexit(_finish_all)  # type: ignore[attr-defined]
    _pipelines.add(pipeline)


def _finish_all() -> None:
    if _owner == os.getpid():
        for pipeline in list(_pipelines):
            pipeline.finish_at_exit()
