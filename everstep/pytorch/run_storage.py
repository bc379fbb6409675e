"""Which place below a configured storage a run keeps its checkpoints in: `STORAGE/NAME-DIGEST/1`, `…/2`, by the same
rules as its folder: other hyperparameters and other names are other runs, a run that is unfinished is continued.

In a directory these are run folders. A bucket has no locks: there, a run that another job is at just now is not
noticed; what a job has chosen is written down before anything else, so that its late workers find it."""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import dataclass

from everstep.pytorch import run_folder
from everstep.pytorch.run_folder import FINISH, KnownRun, RunFolder, decide, plain_name
from everstep.pytorch.units import BatchProgress, TrainUnit
from everstep.storage.base import full_uri, open_storage


@dataclass(frozen=True, kw_only=True)
class RunPlace:
    """In use by this process until it is closed, where that can be known."""

    uri: str
    reason: str
    _folder: RunFolder | None = None

    def mark_finished(self, progress: BatchProgress, length: TrainUnit) -> None:
        """Called by one worker, before the others leave."""
        with closing(open_storage(self.uri)) as storage:
            storage.put(FINISH, run_folder.finish_record(progress, length))

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()


def choose(storage: str, *, name: str, digest: str, length: TrainUnit, job: str | None, nth: int) -> RunPlace:
    """For a run of that length. In a `job` all workers get the same one, whenever they ask for the `nth` time."""
    base = full_uri(storage)
    if "://" in base:
        return _choose_remote(f"{base}/{plain_name(name)}-{digest}", length, job, nth)
    folder = run_folder.choose(base, name=name, digest=digest, length=length, job=job, nth=nth)
    return RunPlace(uri=str(folder.path), reason=folder.reason, _folder=folder)


def _choose_remote(base: str, length: TrainUnit, job: str | None, nth: int) -> RunPlace:
    chosen = f"jobs/{plain_name(job)}/{nth}" if job is not None else None
    with closing(open_storage(base)) as storage:
        if chosen is not None:
            try:
                number = int(storage.read(chosen))
                return RunPlace(uri=f"{base}/{number}", reason=f"run {number} is that of job {job}")
            except FileNotFoundError:
                pass
        numbers = [int(each) for each in storage.list() if re.fullmatch("[1-9][0-9]*", each)]
        newest = None
        if numbers:
            path = f"{max(numbers)}/{FINISH}"
            try:
                finished_at = run_folder.parse_finish(storage.read(path), f"{base}/{path}")
            except FileNotFoundError:
                finished_at = None
            newest = KnownRun(number=max(numbers), finished_at=finished_at)
        decision = decide(newest, length)
        if chosen is not None:
            storage.put(chosen, json.dumps(decision.number).encode())
    return RunPlace(uri=f"{base}/{decision.number}", reason=decision.reason)
