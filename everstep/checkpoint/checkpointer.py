"""`everstep.Checkpointer`: save a state while training continues, and load it back whole.

    checkpointer = everstep.Checkpointer("s3://bucket/run7", metric="val_loss")
    state = {"model": model, "optimizer": optimizer, "step": 0}
    if (saved := checkpointer.load()) is not None:
        model.load_state_dict(saved["model"])
        …
    checkpointer.save(step, state, metrics={"val_loss": loss})

save() copies the state and returns; a writer makes it durable. In a world of several workers each writes its share."""

from __future__ import annotations

import json
import logging
import operator
import os
import platform
import time
from collections.abc import Mapping
from concurrent import futures
from concurrent.futures import Future
from contextlib import closing
from types import TracebackType
from typing import Any

import torch

import everstep
from everstep import env
from everstep.checkpoint import catalog, keep_mark
from everstep.checkpoint.agreement import Agreement, WorkerPlace, place_now
from everstep.checkpoint.code_snapshot import archive_name, record_of, take_snapshot
from everstep.checkpoint.failed_saves import FailedSaves
from everstep.checkpoint.image import WHOLE, ImageShare, lay_out
from everstep.checkpoint.load import read_state
from everstep.checkpoint.manifest import Manifest, RetentionPolicy, parse_folder
from everstep.checkpoint.policy import Found, decide_due, decide_lineage
from everstep.checkpoint.save import SavePipeline
from everstep.checkpoint.saver.held_states import HeldStates
from everstep.checkpoint.state_image import position_of, take_apart
from everstep.checkpoint.state_snapshot import StateSnapshot, take
from everstep.checkpoint.write import Written, failure
from everstep.engine import process_engine
from everstep.errors import CheckpointBroken, CheckpointFailed, EverstepError, UsageError
from everstep.events import emit
from everstep.storage.base import open_storage
from everstep.storage.code_archive import Code

log = logging.getLogger("everstep.checkpoint")

BUSY = ("wait", "skip")
_MOST_LOOKS = 10  # for a checkpoint that others do not delete before it is read


class _Gone(Exception):
    """A checkpoint was deleted or replaced while it was read."""


class Checkpointer:
    """Checkpoints of one run in a directory or bucket.

    `keep_latest` and `keep_best` (by `metric` and `mode`) decide which are kept; `every` saves only steps that are
    multiples of it; `busy` decides what a save does while the last one is still being written; `hparams` and `code` (a
    folder, or what was taken of one) are kept with each checkpoint."""

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        keep_latest: int | None = 2,
        keep_best: int = 1,
        metric: str | None = None,
        mode: str = "min",
        every: int | None = None,
        memory_every: int | None = None,
        busy: str = "wait",
        hparams: Mapping[str, Any] | None = None,
        code: str | os.PathLike[str] | Code | None = None,
    ) -> None:
        for name, value in (("every", every), ("memory_every", memory_every)):
            if value is not None and value < 1:
                raise UsageError(f"{name}={value}", hint="use a number of steps, 1 or more", code="every-not-positive")
        if busy not in BUSY:
            raise UsageError(f"busy={busy!r}", hint='busy is "wait" or "skip"', code="busy-unknown")
        self._policy = RetentionPolicy(keep_latest=keep_latest, keep_best=keep_best, metric=metric, mode=mode)
        self._every, self._memory_every, self._busy = every, memory_every, busy
        self._hparams = _plain(hparams)
        self._snapshot = take_snapshot(code) if isinstance(code, str | os.PathLike) else code
        self._storage = open_storage(uri)
        self._failed_saves = FailedSaves(self._storage.uri)
        self._pipeline = SavePipeline(self._storage, self._is_abandoned)
        self._agreement: Agreement | None = None
        self._num_loads = 0
        self._pending: Future[Written] | None = None
        self._has_code = False
        self._owner = os.getpid()
        self._is_closed = False
        self.loaded: Manifest | None = None  # of the state that load() gave last

    @property
    def uri(self) -> str:
        """Where they are."""
        return self._storage.uri

    # --- saving ---

    def save(self, step: int, state: Any, *, metrics: Mapping[str, float] | None = None, wait: bool = False) -> bool:
        """Copy the state and write it in the background; True if it will be written. With `wait`, return when it is
        durable.

        A failure to write does not raise here unless `wait` is set: it is logged, now and at the end. A state that
        cannot be saved at all is an error at once."""
        self._check_open()
        step = _step_number(step)
        due = decide_due(step, every=self._every, memory_every=self._memory_every, is_asked=wait)
        if not due.is_due:
            return False
        if not due.is_in_memory:  # those may be as many as there are steps
            process_engine.compare_weights()
        snapshot = take(state)
        plain = {str(name): float(value) for name, value in (metrics or {}).items()}
        try:
            is_saved = self._save(step, snapshot, position_of(state), plain, will_be_written=not due.is_in_memory)
        except CheckpointFailed as failed:
            self._failed_saves.failed(step, failed)
            if wait:
                self._failed_saves.raised()
                raise
            return False
        if wait:
            self.wait()
        return is_saved

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return True when the last save is durable, False if it is not in time. Raises CheckpointFailed."""
        if self._pending is None or self._owner != os.getpid():
            return True
        done, _ = futures.wait([self._pending], timeout_s)
        if not done:
            return False
        if (error := self._pending.exception()) is None:
            return True
        self._failed_saves.raised()
        raise _as_failed(error)

    def _check_open(self) -> None:
        if self._owner != os.getpid():
            raise UsageError(
                "save() in a fork of the process that made the Checkpointer, which owns its memory and threads",
                hint="make a Checkpointer in each process that saves, or save in the one that has it",
                code="save-in-fork",
            )
        if self._is_closed:
            raise UsageError("save() after close()", hint="close it after the last save", code="save-after-close")

    def _save(
        self, step: int, snapshot: StateSnapshot, position: Any, metrics: dict[str, float], *, will_be_written: bool
    ) -> bool:
        place = place_now()
        agreement = self._agree(place)
        mark = agreement.mark(step)  # before any return: all workers must count the same
        try:
            word = agreement.settle(is_sharded=snapshot.is_sharded, base=lambda: self._base(step, place))
        except (OSError, RuntimeError, EverstepError) as error:  # RuntimeError: of torch's stores
            failed = failure(error, self._storage, step)
            if place.rank == 0 or snapshot.is_sharded:
                raise failed from error
            log.warning("rank %d does not take part in writing step %d: %s", place.rank, step, failed.message)
            return False
        if word is None:
            return False
        share = ImageShare(rank=place.rank, size=place.size) if word.is_split else WHOLE
        manifest = Manifest(
            generation=word.base + place.generation + mark.num_returns,
            step=step,
            save=f"{word.token}-{mark.num_before + 1}",
            time=time.time(),
            world_size=place.size,
            world_generation=place.generation,
            job=place.job,
            metrics=metrics,
            hparams=self._hparams,
            data=position,
            versions={
                "everstep": everstep.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            code=record_of(self._snapshot) if self._snapshot is not None else None,
            policy=self._policy,
        )
        if will_be_written and self._busy == "skip" and self._pending is not None and not self._pending.done():
            return self._skip(step, snapshot, share, manifest)
        index = self._pipeline.reserve(may_wait=will_be_written)
        if index is None:  # for memory only, and all buffers are being written
            return False
        self._put_code(share)
        pending = self._pipeline.start(
            index,
            snapshot,
            share,
            manifest,
            will_be_written=will_be_written,
            note=lambda done: self._note(step, done, will_be_written),
        )
        if will_be_written:
            self._pending = pending
        return True

    def _skip(self, step: int, snapshot: StateSnapshot, share: ImageShare, manifest: Manifest) -> bool:
        log.warning("checkpoint of step %d skipped: the last one is still being written", step)
        emit("checkpoint.skipped", step=step)
        if share.rank > 0:
            contents = take_apart(snapshot.value)
            self._pipeline.skip(lay_out(contents.skeleton, contents.metas, share).describe(manifest))
        return False

    def _note(self, step: int, done: Future[Written], was_written: bool) -> None:
        error = done.exception()
        if error is not None:
            self._failed_saves.failed(step, _as_failed(error))
        elif was_written:
            written = done.result()
            self._failed_saves.wrote(step, written.seconds, written.size_bytes)
        else:
            emit("checkpoint.kept", step=step)

    def _agree(self, place: WorkerPlace) -> Agreement:
        if self._agreement is None or self._agreement.place != place:
            self._agreement = Agreement(place, self._storage.uri, identity=self._storage.identity)
            self._num_loads = 0
        return self._agreement

    def _is_abandoned(self, manifest: Manifest) -> bool:
        """Whether a later generation has begun: shares that are missing will not come."""
        return place_now().generation > manifest.world_generation

    def _base(self, step: int, place: WorkerPlace) -> int:
        found = self.list()
        lineage = decide_lineage(
            step=step,
            world_generation=place.generation,
            job=place.job,
            newest=next((each.manifest for each in reversed(found) if each.is_whole), None),
            unread=next((each.key for each in reversed(found) if each.is_unreadable), None),
        )
        log.debug("checkpoints are filed under generation %d: %s", lineage.base + place.generation, lineage.reason)
        return lineage.base

    def _put_code(self, share: ImageShare) -> None:
        snapshot = self._snapshot
        if snapshot is None or self._has_code or share.rank > 0:
            return
        self._has_code = True
        self._pipeline.run(lambda: self._write_code(snapshot))

    def _write_code(self, snapshot: Code) -> None:
        try:
            self._storage.put(archive_name(snapshot.sha256), snapshot.data)
        except (OSError, EverstepError) as error:
            self._has_code = False
            log.warning("the code snapshot could not be written; trying again with the next save: %s", error)

    # --- loading ---

    def load(self, step: int | str = "latest") -> Any:
        """The state of the newest whole checkpoint, of the best, or of a step; None if nothing was ever saved.

        A broken checkpoint is named in a warning, and the next one is loaded; a step given by its number must be whole.
        `loaded` is the manifest of the loaded checkpoint."""
        step = step if isinstance(step, str) else _step_number(step)
        for looks_left in reversed(range(_MOST_LOOKS)):
            number = self._num_loads = self._num_loads + 1 if self._agreement is not None else 1
            stored = self.list()
            with closing(HeldStates(self._storage.uri, self._pipeline.held())) as held:
                try:
                    return self._load(step, number, stored, held, may_look_again=looks_left > 0)
                except _Gone as gone:
                    log.info("%s was deleted while it was read, by a newer save; looking again", gone)
        raise AssertionError("the last look does not ask for another")

    def _load(
        self, step: int | str, number: int, stored: list[Found], held: HeldStates, *, may_look_again: bool
    ) -> Any:
        # Memory is used only where all workers are on this node: all of them must load the same.
        in_memory = {each.key.folder: each for each in held.find(stored)} if env.is_one_node() else {}
        found = {each.key.folder: each for each in stored} | in_memory
        agreement = self._agree(place_now())
        self._num_loads = number
        order = agreement.candidates(number, lambda: [each.key.folder for each in self._choose(step, found)])
        problems = [
            each.problem for each in found.values() if each.problem and not each.problem.startswith("incomplete")
        ]
        for problem in problems:
            log.warning("broken checkpoint: %s", problem)
        for index, folder in enumerate(order):
            key = parse_folder(folder)
            assert key is not None
            each = found.get(folder) or catalog.look(self._storage, key)
            state: Any = None
            error: CheckpointBroken | OSError | None = None
            try:
                if each.manifest is None or each.problem:
                    raise CheckpointBroken(each.problem, code="checkpoint-not-whole")
                state = self._read(each, held if folder in in_memory else None)
            except (CheckpointBroken, OSError) as own:
                error = own
            if not (problem := agreement.verdict(number, index, str(error or ""))):
                self.loaded = each.manifest
                is_held = folder in in_memory
                emit("checkpoint.loaded", step=key.step, generation=key.generation, is_from_memory=is_held)
                return state
            if isinstance(step, int):
                raise error or CheckpointBroken(
                    f"{folder} in {self._storage.uri}: {problem}", code="checkpoint-unreadable-elsewhere"
                )
            is_alone = agreement.place.size == 1 or agreement.place.is_elastic  # else all load what rank 0 has found
            if error is not None and may_look_again and is_alone and self._is_gone(each):
                raise _Gone(folder) from error
            problems.append(problem)
            log.warning("broken checkpoint, trying the next one: %s", problem)
        if problems:
            raise CheckpointBroken(
                f"no whole checkpoint in {self._storage.uri}; the last problem: {problems[-1]}",
                hint="`everstep checkpoint verify` lists all problems",
                code="no-whole-checkpoint",
            )
        return None

    def _choose(self, step: int | str, found: dict[str, Found]) -> list[Found]:
        return catalog.choose([found[name] for name in sorted(found)], step, self._policy, self._storage.uri)

    def _is_gone(self, found: Found) -> bool:
        there = catalog.look(self._storage, found.key).manifest
        return there is None or found.manifest is None or there.save != found.manifest.save

    def _read(self, found: Found, held: HeldStates | None) -> Any:
        """From memory if it is there and still whole, else from storage."""
        assert found.manifest is not None
        self._pipeline.expect(found.manifest.size_bytes)
        if held is not None:
            try:
                state = read_state(held, found.manifest)
                held.check(found.key)
                return state
            except (CheckpointBroken, FileNotFoundError) as error:
                log.warning("%s; reading it from storage", error)
        return read_state(self._storage, found.manifest)

    # --- the rest ---

    def list(self) -> list[Found]:
        """All checkpoints, oldest first, the incomplete and broken ones with their `problem`."""
        return catalog.find(self._storage)

    def delete(self, step: int | None = None) -> None:
        """Delete the checkpoints of a step; without one, all of them. Those that are registered as versions of models
        stay."""
        if self._pending is not None and self._owner == os.getpid():
            self._pending.exception()
        step = None if step is None else _step_number(step)
        marked = keep_mark.marked(self._storage.list())
        for each in self.list():
            if each.key in marked and step in (None, each.step):
                log.warning("%s of %s stays: it is registered as a version of a model", each.key.folder, self.uri)
            elif step in (None, each.step):
                catalog.delete(self._storage, each.key)
        self._pipeline.forget(step)

    def close(self) -> None:
        """Wait for the last writes, and release memory, threads and connections."""
        self._is_closed = True
        if self._owner != os.getpid():  # the other process owns everything
            return
        self._pipeline.close()
        self._storage.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None:
            self.wait()


def _step_number(step: Any) -> int:
    """As a Python integer: counters are often numpy's or tensors."""
    try:
        number = operator.index(step)
    except TypeError:
        raise UsageError(f"step={step!r}", hint="a step is a whole number", code="step-not-an-integer") from None
    if number < 0:
        raise UsageError(f"step={step}", hint="steps are 0 or more", code="step-negative")
    return int(number)


def _as_failed(error: BaseException) -> CheckpointFailed:
    if isinstance(error, CheckpointFailed):
        return error
    kind = type(error).__name__
    failed = CheckpointFailed(
        f"a checkpoint could not be made: {kind}: {error}", kind=kind, code="checkpoint-failed-unexpectedly"
    )
    failed.__cause__ = error
    return failed


def _plain(hparams: Mapping[str, Any] | None) -> Any:
    try:
        return None if hparams is None else json.loads(json.dumps(dict(hparams), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"hparams cannot be stored as JSON: {error}",
            hint="use numbers, strings, lists and dicts",
            code="hparams-not-json",
        ) from error
