"""The files of one worker, in a folder of its own in the job's: JOB/w3/{stdout.log, stderr.log, error.json, board}.

A worker's name is never given twice in a job, whatever its node, so no two processes ever share a file.
JOB/attempt_<restarts>/<local rank>, where torchrun's users look, is a link to it."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("everstep")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerFiles:
    directory: Path

    @property
    def stdout(self) -> Path:
        return self.directory / "stdout.log"

    @property
    def stderr(self) -> Path:
        return self.directory / "stderr.log"

    @property
    def error(self) -> Path:
        """Written by torch's `@record` in the worker."""
        return self.directory / "error.json"

    @property
    def board(self) -> Path:
        return self.directory / "board"

    def make(self, *, attempt: int, local_rank: int) -> None:
        """The folder, for its owner alone, and the link to it where the file system has links."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._link(attempt, local_rank)
        except OSError as error:
            log.warning("no link to %s: %s", self.directory, error)

    def _link(self, attempt: int, local_rank: int) -> None:
        links = self.directory.parent / f"attempt_{attempt}"
        links.mkdir(mode=0o700, exist_ok=True)
        aside = links / f".{self.directory.name}"
        aside.unlink(missing_ok=True)
        aside.symlink_to(Path("..") / self.directory.name)
        aside.replace(links / str(local_rank))  # the latest, where a job is taken up again or nodes share the folder

    def written_at(self) -> float:
        """When the worker last printed something, by the monotonic clock. Now, if that cannot be found out (a file that
        was moved away, a file system that does not answer): no worker is to be killed for it."""
        try:
            last = max(path.stat().st_mtime for path in (self.stdout, self.stderr))
        except OSError:
            return time.monotonic()
        return last - time.time() + time.monotonic()

    def error_message(self) -> str:
        """What the worker recorded of its exception; "" if nothing, or nothing that can be read."""
        try:
            message = json.loads(self.error.read_text(errors="replace"))["message"]
            return str(message["message"] if isinstance(message, dict) else message)
        except (OSError, ValueError, KeyError, TypeError):
            return ""
