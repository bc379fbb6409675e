"""TensorBoard's files, written by the current chief: training/NAME and validation/NAME by batches.

When a run resumes from an earlier batch, or a new chief takes over, TensorBoard first discards the later points.
Without the package there is one warning, and training continues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.pytorch.display import is_number
from everstep.record.event_file import OURS

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

log = logging.getLogger(__name__)

FOLDER = "tensorboard"
_FLUSH_S = 10


class TensorBoard:
    def __init__(self, folder: Path, is_chief: Callable[[], bool], *, is_enabled: bool) -> None:
        self._folder, self._is_chief, self._is_enabled = folder, is_chief, is_enabled
        self._writer: SummaryWriter | None = None
        self._step = 0

    def began(self, step: int) -> None:
        """Training begins here. The chief opens its file now: the import takes longer than many batches."""
        self._step = step
        self.call("flush")

    def scalars(self, prefix: str, metrics: Mapping[str, Any], step: int) -> None:
        self._step = step
        for name, value in metrics.items():
            if is_number(value):
                self.call("add_scalar", f"{prefix}/{name}", float(value), step)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the writer; nothing happens unless this worker is the chief."""
        if not self._is_enabled or not self._is_chief():
            return None
        try:
            if self._writer is None:
                self._writer = self._open()
            return getattr(self._writer, method)(*args, **kwargs)
        except ImportError as error:
            self._give_up(f"TensorBoard files are not written: {error}; to get them: pip install tensorboard")
        except OSError as error:
            self._give_up(f"TensorBoard files are no longer written: {error}")
        return None

    def _open(self) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_continued = any(self._folder.glob("events.out.tfevents.*"))
        purge_step = self._step + 1 if is_continued else None
        return SummaryWriter(str(self._folder), purge_step=purge_step, flush_secs=_FLUSH_S, filename_suffix=OURS)

    def _give_up(self, why: str) -> None:
        self._is_enabled = False
        log.warning(why)

    def flush(self) -> None:
        if self._writer is not None:
            self.call("flush")

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except OSError as error:
                self._give_up(f"the last TensorBoard events were not written: {error}")


class ChiefWriter:
    """A SummaryWriter for scripts: it can be used on all workers, and writes on the chief."""

    def __init__(self, board: TensorBoard) -> None:
        self._board = board

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_") or not _has_method(method):
            raise AttributeError(f"SummaryWriter has no method {method!r}")

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._board.call(method, *args, **kwargs)

        return call

    def flush(self) -> None:
        self._board.flush()

    close = flush  # the trainer closes the file


def _has_method(name: str) -> bool:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return True  # unknown; the call will report the missing package
    return callable(getattr(SummaryWriter, name, None))
