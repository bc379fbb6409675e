"""torch.profiler around the batches that were asked for; its traces go where TensorBoard looks.

Every worker profiles itself and writes files of its own. Without an end, a trace is written every few batches: a trace
is in memory until then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction, profile, tensorboard_trace_handler

from everstep import env
from everstep.errors import UsageError

BATCHES_PER_TRACE = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfilerSettings:
    """
    sync_timings: wait for the GPU after each batch, so that its work counts where it belongs.
    begin_on_batch, end_after_batch: the first and the last one to be profiled, counted from 0; None: until the end.
    arguments: for torch.profiler.profile."""

    is_enabled: bool = False
    sync_timings: bool = True
    begin_on_batch: int = 0
    end_after_batch: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def is_wanted(self, batch: int) -> bool:
        is_before_end = self.end_after_batch is None or batch <= self.end_after_batch
        return self.is_enabled and batch >= self.begin_on_batch and is_before_end


def configure_profiler(
    *, enabled: bool = False, sync_timings: bool = True, begin_on_batch: int = 0, end_after_batch: int | None = None
) -> ProfilerSettings:
    if begin_on_batch < 0 or (end_after_batch is not None and end_after_batch < begin_on_batch):
        raise UsageError(
            f"no batch lies between begin_on_batch={begin_on_batch} and end_after_batch={end_after_batch}",
            hint="both are counted from 0 and are profiled themselves: begin_on_batch=10, end_after_batch=19",
        )
    return ProfilerSettings(
        is_enabled=enabled, sync_timings=sync_timings, begin_on_batch=begin_on_batch, end_after_batch=end_after_batch
    )


def profiler_arguments(*args: Any, **kwargs: Any) -> ProfilerSettings:
    """For context.set_profiler: as torch.profiler.profile, whose own schedule says which batches."""
    if args:
        raise UsageError(
            f"set_profiler was given {len(args)} arguments without names",
            hint="torch.profiler.profile takes them by name: set_profiler(activities=[…], schedule=…)",
        )
    return ProfilerSettings(is_enabled=True, arguments=kwargs)


class Profiler:
    """Told of every batch; from its beginning to `close`."""

    def __init__(self, settings: ProfilerSettings, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        self._profile: profile | None = None

    def step(self, batch: int) -> None:
        """The batch with this number comes next."""
        settings = self._settings
        if self._profile is None and not settings.is_wanted(batch):
            return
        if settings.sync_timings and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        if not settings.is_wanted(batch):
            self.close()
        elif self._profile is None:
            self._profile = self._begin()
        else:
            self._profile.step()

    def _begin(self) -> profile:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        usual: dict[str, Any] = {
            "on_trace_ready": tensorboard_trace_handler(str(self._folder), env.worker() or None),
        }
        if self._settings.end_after_batch is None:
            usual["schedule"] = _save_now_and_then
        profiler = profile(**(usual | dict(self._settings.arguments)))
        profiler.start()
        return profiler

    def close(self) -> None:
        """What was profiled is written."""
        profiler, self._profile = self._profile, None
        if profiler is not None:
            profiler.stop()


def _save_now_and_then(batch: int) -> ProfilerAction:
    is_last = batch % BATCHES_PER_TRACE == BATCHES_PER_TRACE - 1
    return ProfilerAction.RECORD_AND_SAVE if is_last else ProfilerAction.RECORD
