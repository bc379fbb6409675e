"""The folder that TensorBoard shows: experiment_12/trial_7 for each trial, brought up to date while trials run.

A trial's own event files, which are beside its checkpoints, are linked. Where they are gone, or on another machine,
they are written again from the series that the coordinator has. Either way, its hyperparameters are added."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.jobs.board_events import EventWriter
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.trial_points import known_series, series_pages
from everstep.wire.metrics import Value

_BESIDE_CHECKPOINTS = "tensorboard"  # where a Trainer writes them
_SHOWN = ("tfevents", ".pt.trace.json")  # in the names of what TensorBoard shows
_MOST_FILES = 10_000  # of a trial
Point = tuple[int, float, Value]  # step, time, value


@dataclass(kw_only=True, slots=True)
class _WrittenSeries:
    last: Point
    count: int
    seen: tuple[int, int, float]  # of the series, at the last look: count, last step and time


@dataclass(kw_only=True, slots=True)
class _ShownTrial:
    folder: Path
    writer: EventWriter
    series: dict[int, _WrittenSeries] = field(default_factory=dict)
    is_linked: bool = False
    is_done: bool = False


class BoardFolder:
    def __init__(self, link: CoordinatorLink, path: Path) -> None:
        self._link, self._path = link, path
        self._trials: dict[int, _ShownTrial] = {}  # by ID

    @property
    def num_linked(self) -> int:
        """Trials whose own files are shown."""
        return sum(each.is_linked for each in self._trials.values())

    def refresh(self, trials: Iterable[wire.TrialView], checkpoints: Iterable[wire.SavedCheckpoint]) -> None:
        """Add what is new of these trials, and those that are new."""
        places: dict[tuple[int, int], dict[str, None]] = defaultdict(dict)
        for each in checkpoints:
            places[each.experiment, each.trial][each.uri] = None
        for trial in trials:
            shown = self._trials.get(trial.trial_id) or self._begin(trial)
            if not shown.is_done:
                self._update(shown, trial, [*places[trial.experiment, trial.trial]])

    def _begin(self, trial: wire.TrialView) -> _ShownTrial:
        folder = self._path / f"experiment_{trial.experiment}" / f"trial_{trial.trial}"
        writer = EventWriter(folder)
        writer.begin_trial(trial)
        shown = self._trials[trial.trial_id] = _ShownTrial(folder=folder, writer=writer)
        return shown

    def _update(self, shown: _ShownTrial, trial: wire.TrialView, places: Sequence[str]) -> None:
        own = None if shown.series else own_folder(places)
        if own is not None:
            _link_files(own, shown.folder)
            shown.is_linked = True
        elif not shown.is_linked:
            with closing(self._link.of_job(trial.job)) as coordinator:
                _write_on(coordinator, shown)
        if trial.ended_at is not None:
            shown.writer.end_trial(trial)
            shown.is_done = True


# --- a trial's own files ---


def own_folder(checkpoints: Iterable[str]) -> Path | None:
    """The folder with a trial's own files, if this machine has it. `checkpoints`: their places."""
    for uri in checkpoints:
        place = uri.removeprefix("file://")
        folder = Path(place).parent / _BESIDE_CHECKPOINTS
        if "://" not in place and any(_files(folder)):
            return folder
    return None


def _files(folder: Path) -> Iterator[Path]:
    found = (path for path in folder.rglob("*") if any(word in path.name for word in _SHOWN) and path.is_file())
    return itertools.islice(found, _MOST_FILES)


def _link_files(own: Path, folder: Path) -> None:
    for path in _files(own):
        link = folder / path.relative_to(own)
        link.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.symlink(path, link)


# --- from the coordinator's series ---


class _Replaced(Exception):
    """Points that were written are not the series' any more: steps were trained again, or came late."""


def _write_on(coordinator: Coordinator, shown: _ShownTrial) -> None:
    try:
        _write_new(coordinator, shown)
    except _Replaced:
        shown.writer.start_over()
        shown.series.clear()
        with suppress(_Replaced):  # replaced again, just now: the next look finds it
            _write_new(coordinator, shown)


def _write_new(coordinator: Coordinator, shown: _ShownTrial) -> None:
    found = known_series(coordinator)
    if shown.series.keys() - {each.series for each in found}:
        raise _Replaced
    for series in found:
        known = shown.series.get(series.series)
        seen = (series.count, series.last_step, series.last_time)
        if known is not None and known.seen == seen:
            continue
        shown.series[series.series] = _write_series(coordinator, shown.writer, series, known, seen)


def _write_series(
    coordinator: Coordinator,
    writer: EventWriter,
    series: wire.SeriesView,
    known: _WrittenSeries | None,
    seen: tuple[int, int, float],
) -> _WrittenSeries:
    """From the last point that was written on: it must still be there."""
    if known is not None and series.last_step < known.last[0]:
        raise _Replaced
    last = known.last if known is not None else None
    count, num_later = known.count if known is not None else 0, 0
    for number, page in enumerate(series_pages(coordinator, series, known.last[0] if known else 0)):
        points = list(zip(page.first_steps, page.first_times, page.firsts, strict=True))
        if known is not None and number == 0:
            if points[:1] != [known.last]:
                raise _Replaced
            del points[0]
        writer.scalars(series.name, points)
        last, count = points[-1] if points else last, count + len(points)
        num_later += sum(step > series.last_step for step, _, _ in points)
    if last is None or count - num_later != series.count:
        raise _Replaced
    return _WrittenSeries(last=last, count=count, seen=seen)
