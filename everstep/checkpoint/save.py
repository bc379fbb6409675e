"""From a state that is to be saved to its image in memory, and on to a writer: all that happens after save() returns.

The memory is the saver's where the node has one, so that the state outlives this worker, and the saver writes it; else
it is private and a thread of this process writes. If the saver is lost, the thread takes over what it was to write."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future

from everstep import env
from everstep.checkpoint import state_block
from everstep.checkpoint.collect import StateSnapshot
from everstep.checkpoint.copy_gate import GATE
from everstep.checkpoint.copying import Changed, Copier, Copy, Pairs
from everstep.checkpoint.double_buffer import Arena, Filling
from everstep.checkpoint.image import ImageLayout, ImageShare, put_heads
from everstep.checkpoint.image_description import Description, pack
from everstep.checkpoint.image_layout import Draughtsman
from everstep.checkpoint.manifest import Manifest
from everstep.checkpoint.memory_blocks import GrowingBlock
from everstep.checkpoint.pinning import pin
from everstep.checkpoint.saver.client import SaverConnection, SaverGone
from everstep.checkpoint.saver.messages import SlotWritten
from everstep.checkpoint.write import Written
from everstep.checkpoint.writer import ThreadWriter
from everstep.errors import CheckpointFailed
from everstep.storage.base import Storage

log = logging.getLogger("everstep.checkpoint")

_OWN_MEMORY = ("memory",)  # storages that no other process can reach


class Saver:
    """For one storage. `reserve`, then `start`; the future is done when the state is durable, or cannot be."""

    def __init__(self, storage: Storage, writer: ThreadWriter) -> None:
        self._storage, self._writer = storage, writer
        self._copier = Copier()
        self._draughtsman = Draughtsman(storage.file_bytes)
        self._outstanding: set[Future[Written]] = set()
        self._changed = threading.Condition()
        _finish_at_exit(self)
        self._line = self._connect()
        self._arena = self._open_arena()
        GATE.hang()
        GATE.tell_size(self._get_ready)

    @property
    def has_saver(self) -> bool:
        return self._line is not None and not self._line.is_gone

    def expect(self, image_bytes: int) -> None:
        """States of about this size will come."""
        self._arena.expect(image_bytes)

    def _get_ready(self, image_bytes: int) -> None:
        """Training has begun."""
        self.expect(image_bytes)
        self._copier.open()

    def reserve(self, *, may_wait: bool) -> int | None:
        """A slot, or None if the last states are still being written."""
        return self._arena.reserve(may_wait=may_wait)

    def cancel(self, index: int) -> None:
        self._arena.cancel(index)

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
        """Copy beside training, then have it written, or just keep it in memory. `note` is told how it went."""
        passage = _Passage(index, snapshot, share, manifest)
        done: Future[Written] = Future()
        with self._changed:
            self._outstanding.add(done)
        done.add_done_callback(note)
        done.add_done_callback(self._end)  # after it was noted

        def then(problem: BaseException | None) -> None:
            if problem is None:
                try:
                    self._hand_on(passage, done, will_be_written)
                    return
                except Exception as error:  # or whoever waits would wait forever, and so would the next save
                    problem = error
            self._arena.cancel(index)
            self._arena.release(index)
            done.set_exception(_failure(problem, self._storage.uri))

        copy = Copy(snapshot, lambda: self._begin(passage), then)
        self._copier.start(copy)
        if snapshot.is_in_haste:
            copy.wait_for_change()
        return done

    def forget(self, step: int | None) -> None:
        """It was deleted from storage; None: all were."""
        if self._line is not None:
            with contextlib.suppress(SaverGone):
                self._line.forget(self._storage.uri, step)

    def held(self) -> list[int]:
        """Files of the states in the saver's memory."""
        if self._line is None:
            return []
        try:
            return self._line.held(self._storage.uri, is_patient=not env.is_one_node())
        except SaverGone:
            return []

    def close(self) -> None:
        """All that was begun is durable, or has failed, when this returns."""
        self.finish()
        self._copier.close()
        self._writer.close()
        if self._line is not None:
            self._line.close()
        self._draughtsman.forget()
        self._arena.close()

    def finish(self) -> None:
        """Until all that was begun is durable or has failed, and was noted."""
        with self._changed:
            self._changed.wait_for(lambda: not self._outstanding)

    def _end(self, done: Future[Written]) -> None:
        with self._changed:
            self._outstanding.discard(done)
            self._changed.notify_all()

    # --- the saver ------------------------------------------------------------------------------------

    def _connect(self) -> SaverConnection | None:
        path = env.saver_path()
        if path is None or self._storage.uri.partition("://")[0] in _OWN_MEMORY:
            return None
        try:
            return SaverConnection(path, on_free=lambda index: self._arena.release(index))
        except SaverGone as gone:
            log.warning("%s; checkpoints are written by this process and do not outlive it", gone.message)
            return None

    def _open_arena(self) -> Arena:
        if self._line is not None:
            try:
                opened = self._line.open_arena(self._storage.uri, env.place_on_node())
                return Arena([GrowingBlock(file) for file in opened.files], busy=opened.busy, prepare=pin)
            except SaverGone as gone:
                log.warning("%s; checkpoints are written by this process and do not outlive it", gone.message)
                self._line = None
        return Arena(prepare=pin)

    # --- in the copier's thread -----------------------------------------------------------------------

    def _begin(self, passage: _Passage) -> Pairs:
        assert passage.snapshot is not None
        drawing = self._draughtsman.draw(passage.snapshot, passage.share)
        layout, manifest = drawing.layout, passage.manifest
        passage.layout = layout
        passage.filling = self._arena.begin(
            passage.index,
            generation=manifest.key.generation,
            step=manifest.key.step,
            description=pack(Description(uri=self._storage.uri, layout=layout, manifest=manifest)),
            image_bytes=layout.size_bytes,
        )
        put_heads(layout, passage.filling.image)
        return self._draughtsman.pairs(drawing, passage.filling)

    def _hand_on(self, passage: _Passage, done: Future[Written], will_be_written: bool) -> None:
        passage.snapshot = None
        passage.filling.commit(will_be_written=will_be_written)
        if will_be_written:
            self._write(passage, done)
        else:
            done.set_result(Written(size_bytes=len(passage.filling.image), seconds=0.0, manifest=None))

    def _write(self, passage: _Passage, done: Future[Written]) -> None:
        filling = passage.filling
        if self._line is None or self._line.is_gone or not self._arena.is_shared:
            self._write_here(passage, done)
            return

        def tell(outcome: SlotWritten) -> None:
            if outcome.cause == "SaverGone":
                self._write_here(passage, done)
                return
            self._arena.release(filling.index)
            if outcome.problem:
                failed = CheckpointFailed(outcome.problem, hint=outcome.hint or None)
                failed.kind = outcome.cause
                done.set_exception(failed)
            else:
                done.set_result(Written(size_bytes=outcome.size_bytes, seconds=outcome.seconds, manifest=None))

        self._line.write(filling.index, filling.sequence, tell)

    def _write_here(self, passage: _Passage, done: Future[Written]) -> None:
        lent = _Lent(self._arena, passage.filling)
        written = self._writer.submit(lent, passage.layout, passage.manifest)
        written.add_done_callback(lambda one: _pass_on(one, done))


class _Passage:
    """A state on its way from the worker's memory to a slot and on."""

    layout: ImageLayout
    filling: Filling

    def __init__(self, index: int, snapshot: StateSnapshot, share: ImageShare, manifest: Manifest) -> None:
        self.index, self.share, self.manifest = index, share, manifest
        self.snapshot: StateSnapshot | None = snapshot


class _Lent:
    """A slot as the thread's writer wants it."""

    def __init__(self, arena: Arena, filling: Filling) -> None:
        self._arena, self._index = arena, filling.index
        self.memory = state_block.image_view(filling.block.view)

    def release(self) -> None:
        self._arena.release(self._index)


_savers: weakref.WeakSet[Saver] = weakref.WeakSet()
_owner = 0  # the process that the exit handler belongs to


def _finish_at_exit(saver: Saver) -> None:
    """Before Python's own executors are ended: a copy under way still has to be written."""
    global _owner
    if _owner != os.getpid():
        _owner = os.getpid()
        _savers.clear()
        threading._register_atexit(_finish_all)  # type: ignore[attr-defined]
    _savers.add(saver)


def _finish_all() -> None:
    if _owner == os.getpid():
        for saver in list(_savers):
            saver.finish()


def _pass_on(one: Future[Written], other: Future[Written]) -> None:
    if (error := one.exception()) is not None:
        other.set_exception(error)
    else:
        other.set_result(one.result())


def _failure(problem: BaseException, uri: str) -> BaseException:
    if isinstance(problem, Changed):
        failed = CheckpointFailed(
            f"a checkpoint for {uri} was dropped: parameters were changed in place while they were copied ({problem})",
            hint="from now on they are copied before save() returns; change parameters by an optimizer alone",
        )
        failed.kind = "Changed"
        return failed
    return problem
