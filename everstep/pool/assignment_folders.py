"""The folders of assignments on a node: made for each, and removed when their ends are known, but for the newest.

What trials print is at the coordinator; these are for finding out why a trial did not even begin."""

from __future__ import annotations

import shutil
from collections import deque
from pathlib import Path

from everstep.storage import private_file

MOST_KEPT = 20


class AssignmentFolders:
    def __init__(self, folder: Path) -> None:
        """Those of an earlier agent are removed: nothing runs in them."""
        self._folder = folder / "assignments"
        self._done: deque[int] = deque()
        shutil.rmtree(self._folder, ignore_errors=True)

    def make(self, number: int) -> Path:
        return private_file.make_folder(self._folder / str(number))

    def let_go(self, number: int) -> None:
        self._done.append(number)
        while len(self._done) > MOST_KEPT:
            shutil.rmtree(self._folder / str(self._done.popleft()), ignore_errors=True)
