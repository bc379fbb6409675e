"""One worker of this node, as its agent knows it: its process, its files, and what has been done about it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from everstep.ipc.progress_page import WorkerProgress, await_end, has_lifeline, has_raised, is_shared, read_board
from everstep.launcher.decisions import WorkerEnd
from everstep.launcher.node import WorkerRanks
from everstep.launcher.worker_files import WorkerFiles
from everstep.process import Child, Exit
from everstep.wire import WorkerExit


@dataclass(kw_only=True, slots=True, eq=False)
class LocalWorker:
    place: WorkerRanks
    child: Child
    files: WorkerFiles
    is_listened_to: bool = False  # its end is noticed before the kernel is done with it
    is_exit_reported: bool = False
    is_condemned: bool = False  # by an order to kill it
    was_asked: bool = False  # to end

    @property
    def name(self) -> str:
        return self.place.worker

    @property
    def progress(self) -> WorkerProgress:
        return read_board(self.files.board)

    def exit_with(self, code: int) -> WorkerExit:
        """What the coordinator needs to know of its end."""
        progress = self.progress
        return WorkerExit(
            exit_code=code, step=progress.step, micro_batch=progress.micro_batch, was_asked=self.was_asked
        )

    def end_with(self, ended: Exit) -> WorkerEnd:
        """What the verdict on this node needs to know of its end."""
        progress = self.progress
        return WorkerEnd(
            worker=self.name,
            exit=ended,
            step=progress.step,
            micro_batch=progress.micro_batch,
            attempt=self.place.order.number,
            was_asked=self.was_asked,
            has_raised=has_raised(self.files.board),
            is_shared=is_shared(self.files.board),
        )

    def listen(self, on_ending: Callable[[], None]) -> None:
        """Notice its end as early as possible; `on_ending` is called in a thread of its own."""
        if self.is_listened_to or not has_lifeline(self.files.board):
            return
        self.is_listened_to = True

        def wait() -> None:
            if await_end(self.files.board):
                on_ending()

        threading.Thread(target=wait, name=f"lifeline of {self.name}", daemon=True).start()
