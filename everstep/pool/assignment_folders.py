"""The folders of assignments on a node: made for each, and kept for a while after its end.

The coordinator has the output of trials. These folders show why a trial did not even start, so those of failed
assignments are kept longer."""

from __future__ import annotations

import contextlib
import shutil
from collections import deque
from pathlib import Path

from everstep.storage import private_file

MOST_KEPT = 50  # of those that ended well, and of those that failed
ASSIGNMENTS = "assignments"
_FAILED = "failed"  # a file that marks them


class AssignmentFolders:
    def __init__(self, folder: Path) -> None:
        """Take over the folders of an earlier agent as ended: nothing runs in them."""
        self._folder = folder / ASSIGNMENTS
        self._good, self._failed = deque[Path](), deque[Path]()
        found = sorted(self._folder.glob("[0-9]*"), key=lambda each: each.stat().st_mtime)
        for each in found:
            self._keep(each)

    def make(self, number: int) -> Path:
        """A folder with this number may belong to another coordinator."""
        folder = self._folder / str(number)
        for kept in (self._good, self._failed):
            if folder in kept:
                kept.remove(folder)
        shutil.rmtree(folder, ignore_errors=True)
        return private_file.make_folder(folder)

    def let_go(self, number: int, *, is_failed: bool) -> None:
        folder = self._folder / str(number)
        if folder.is_dir():
            if is_failed:
                with contextlib.suppress(OSError):  # a full disk may be why it failed
                    (folder / _FAILED).touch()
            self._keep(folder)

    def _keep(self, folder: Path) -> None:
        kept = self._failed if (folder / _FAILED).exists() else self._good
        kept.append(folder)
        while len(kept) > MOST_KEPT:
            shutil.rmtree(kept.popleft(), ignore_errors=True)
