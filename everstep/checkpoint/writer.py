"""Who writes a filled slot to storage: here, a thread of this process.

A writer takes slots one after another and never stops for a failure: it tells, and goes on with the next.
Runs without torch."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from everstep.checkpoint.catalog import retire, sweep, wrong_size
from everstep.checkpoint.image import ImageLayout
from everstep.checkpoint.manifest import CheckpointKey, Manifest
from everstep.checkpoint.retention import Retention
from everstep.checkpoint.write import Written, failure, put_part, write_image
from everstep.errors import CheckpointFailed
from everstep.storage.base import Storage

log = logging.getLogger("everstep.checkpoint")


class ImageMemory(Protocol):
    """Memory for one image. It is the writer's from `submit` on, who releases it."""

    memory: memoryview

    def release(self) -> None: ...


class ThreadWriter:
    """Writes in a thread of this process; the interpreter waits for it before it ends."""

    def __init__(self, storage: Storage, is_abandoned: Callable[[Manifest], bool]) -> None:
        _finish_at_exit(self)
        self._storage = storage
        self._is_abandoned = is_abandoned
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="everstep-checkpoint")

    def submit(self, slot: ImageMemory, layout: ImageLayout, manifest: Manifest) -> Future[Written]:
        done: Future[Written] = Future()
        self._thread.submit(self._write, slot, layout, manifest, done)
        return done

    def skip(self, layout: ImageLayout, manifest: Manifest) -> None:
        self._thread.submit(put_part, self._storage, layout, manifest, [], is_skipped=True)

    def run(self, action: Callable[[], None]) -> Future[None]:
        """Something else to do with the storage, in its turn."""
        return self._thread.submit(action)

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    def _write(self, slot: ImageMemory, layout: ImageLayout, manifest: Manifest, done: Future[Written]) -> None:
        try:
            stored = store(
                self._storage, layout, slot.memory, manifest, is_abandoned=lambda: self._is_abandoned(manifest)
            )
        except BaseException as error:
            slot.release()
            done.set_exception(error)
            return
        slot.release()
        done.set_result(stored.written)
        clear_away(self._storage, stored)


_writers: weakref.WeakSet[ThreadWriter] = weakref.WeakSet()
_is_registered = False


def _finish_at_exit(writer: ThreadWriter) -> None:
    """Have all writing done while threads can still be started: storage drivers need some."""
    global _is_registered
    _writers.add(writer)
    if not _is_registered:
        _is_registered = True
        # atexit would be too late: by then concurrent.futures takes no more work. Whoever registers last comes first.
        threading._register_atexit(_finish)  # type: ignore[attr-defined]


def _finish() -> None:
    for writer in list(_writers):
        writer.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """A state that is durable. `retention` is what was decided about the others, where it was ours to decide."""

    step: int
    written: Written
    retention: Retention | None


def store(
    storage: Storage,
    layout: ImageLayout,
    image: memoryview,
    manifest: Manifest,
    *,
    is_abandoned: Callable[[], bool] = lambda: False,
) -> Stored:
    """Write, then hide what the manifest's policy does not keep: whoever is told now finds what there shall be. What
    takes longer is for `clear_away`. Raises CheckpointFailed and nothing else."""
    try:
        written = write_image(storage, layout, image, manifest, is_abandoned=is_abandoned)
    except CheckpointFailed:
        raise
    except Exception as error:  # a driver's own; the next save may go well
        raise failure(error, storage, manifest) from error
    if written.manifest is None:
        return Stored(step=manifest.step, written=written, retention=None)
    retention, problem = _retire(storage, written.manifest)
    if problem:
        raise CheckpointFailed(
            f"the checkpoint of step {manifest.step} in {storage.uri} was written, but {problem}",
            hint="does another run save to the same place? Give each its own",
        )
    return Stored(step=manifest.step, written=written, retention=retention)


def clear_away(storage: Storage, stored: Stored) -> None:
    """Give back the space of what is not kept. Before the next is written: that one may need it."""
    if stored.retention is None:
        return
    try:
        sweep(storage, stored.retention)
    except Exception as error:
        _warn(storage, error)


def _retire(storage: Storage, ours: Manifest) -> tuple[Retention | None, str]:
    """Also what has become of ours, which retention, here or in another run, may have taken for an old one."""
    try:
        decision = retire(storage, ours.policy)
        return decision, _problem(decision, ours.key) or wrong_size(storage, ours)
    except Exception as error:
        _warn(storage, error)
        return None, ""


def _problem(decision: Retention, ours: CheckpointKey) -> str:
    if ours in decision.overtaken:
        return f"it is not the latest: {max(decision.keep).folder} is"
    return f"it is gone again: {decision.delete[ours]}" if ours in decision.delete else ""


def _warn(storage: Storage, error: Exception) -> None:
    """The checkpoint is there; deleting is tried again after the next save."""
    log.warning("old checkpoints in %s could not be deleted: %s", storage.uri, error)
