"""Trials, their metrics and their checkpoints as files: CSV, or JSON lines. All points, NaN and infinities too.

Files are written aside and take their places together once all are complete, so an export that fails or is interrupted
leaves the files of an earlier one as they were. Points are read and written page by page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from everstep import wire
from everstep.errors import UsageError
from everstep.jobs import experiments
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.spoken_progress import SpokenProgress
from everstep.jobs.trial_points import trial_pages
from everstep.storage import private_file
from everstep.wire.hparams import flat

CSV, JSON_LINES = "csv", "jsonl"
_OF_EVERYONE = 0o666  # less the umask: these files are for others too
_Row = Sequence[Any] | Mapping[str, Any]  # cells, or cells by column
_METRIC_COLUMNS = ("experiment", "trial", "trial_id", "metric", "step", "time", "value")
_CHECKPOINT_COLUMNS = (
    *("experiment", "trial", "uuid", "step", "metric", "state", "num_bytes", "created_at", "digest", "uri"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedExperiment:
    view: wire.ExperimentView
    trials: Sequence[wire.TrialView]
    checkpoints: Sequence[wire.SavedCheckpoint]


def read_experiments(link: CoordinatorLink, numbers: Iterable[int]) -> list[ExportedExperiment]:
    """All but the metrics."""
    return [
        ExportedExperiment(
            view=link(lambda it, number=number: it.experiment(number)),  # type: ignore[misc]
            trials=experiments.all_trials(link, number),
            checkpoints=experiments.all_checkpoints(link, number),
        )
        for number in dict.fromkeys(numbers)
    ]


def export_files(
    link: CoordinatorLink, found: Sequence[ExportedExperiment], folder: Path, form: str, tell: Callable[[str], None]
) -> list[Path]:
    """Write trials, metrics and checkpoints to files with these names; return their paths."""
    names = [each for it in found for trial in it.trials for each, _ in flat(trial.hparams)]
    hparams = [f"hparams.{each}" for each in dict.fromkeys(names)]
    rows: dict[str, tuple[Sequence[str], Iterable[_Row]]] = {
        "trials": ((*trial_facts_columns(), *hparams), trial_rows(found, is_flat=form == CSV)),
        "metrics": (_METRIC_COLUMNS, _metric_rows(link, found, tell)),
        "checkpoints": (_CHECKPOINT_COLUMNS, _checkpoint_rows(found)),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as files:
            for name, (columns, facts) in rows.items():
                _write(files.enter_context(_table(folder / f"{name}.{form}", form, columns)), facts)
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror or error}",
            hint="free some space there, or name another folder with -o",
            code="export-folder",
        ) from error
    return [folder / f"{name}.{form}" for name in rows]


# --- rows: facts by column ---


def trial_facts_columns() -> Sequence[str]:
    return (
        *("experiment", "name", "trial", "trial_id", "job", "state", "reason", "metric", "best", "best_length"),
        *("latest", "length", "target", "unit", "batches", "seconds", "restarts", "bracket", "seed", "kind"),
        *("created_at", "started_at", "ended_at", "checkpoints", "best_checkpoint", "latest_checkpoint"),
    )


def trial_rows(found: Iterable[ExportedExperiment], *, is_flat: bool) -> Iterator[dict[str, Any]]:
    """`is_flat`: with a column for each hyperparameter; else they are an object."""
    for each in found:
        for trial in each.trials:
            facts = _trial_facts(each, trial)
            if is_flat:
                hparams = {f"hparams.{name}": value for name, value in flat(trial.hparams)}
                yield {**facts, "checkpoints": " ".join(facts["checkpoints"]), **hparams}
            else:
                yield {**facts, "hparams": trial.hparams}


def _trial_facts(each: ExportedExperiment, trial: wire.TrialView) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": each.view.name,
        "metric": each.view.metric,
        "unit": each.view.unit,
        "restarts": trial.num_restarts,
        "seconds": seconds_of(trial),
        "checkpoints": [it.uuid for it in each.checkpoints if it.trial == trial.trial],
    }
    return {name: facts[name] if name in facts else getattr(trial, name) for name in trial_facts_columns()}


def seconds_of(trial: wire.TrialView) -> float | None:
    """From its start to its end, waits included; None: it is not over, or never started."""
    if trial.started_at is None or trial.ended_at is None:
        return None
    return round(max(0.0, trial.ended_at - trial.started_at), 3)


def _metric_rows(
    link: CoordinatorLink, found: Sequence[ExportedExperiment], tell: Callable[[str], None]
) -> Iterator[tuple[Any, ...]]:
    trials = list(chain.from_iterable(each.trials for each in found))
    progress = SpokenProgress(tell, "metrics", len(trials), "trials")
    for trial in trials:
        of_trial = (trial.experiment, trial.trial, trial.trial_id)
        for page in trial_pages(link, trial.job):
            points = zip(page.first_steps, page.first_times, page.firsts, strict=True)
            yield from ((*of_trial, page.name, *point) for point in points)
            progress.add(len(page.first_steps), "points")
        progress.done()


def _checkpoint_rows(found: Iterable[ExportedExperiment]) -> Iterator[tuple[Any, ...]]:
    for each in chain.from_iterable(it.checkpoints for it in found):
        yield tuple(getattr(each, name) for name in _CHECKPOINT_COLUMNS)


# --- files ---


class _RowWriter(Protocol):
    def write(self, row: _Row) -> None: ...


class _CsvRows:
    def __init__(self, file: io.TextIOBase, columns: Sequence[str]) -> None:
        self._columns, self._writer = columns, csv.writer(file, lineterminator="\n")
        self._writer.writerow(columns)

    def write(self, row: _Row) -> None:
        cells = [row.get(name) for name in self._columns] if isinstance(row, Mapping) else row
        self._writer.writerow([json.dumps(each) if isinstance(each, list | dict | bool) else each for each in cells])


class _JsonLines:
    def __init__(self, file: io.TextIOBase, columns: Sequence[str]) -> None:
        self._columns, self._file = columns, file

    def write(self, row: _Row) -> None:
        value = row if isinstance(row, Mapping) else dict(zip(self._columns, row, strict=True))
        self._file.write(json.dumps(value, allow_nan=False) + "\n")


@contextmanager
def _table(path: Path, form: str, columns: Sequence[str]) -> Iterator[_RowWriter]:
    with private_file.replacing(path, mode=_OF_EVERYONE, is_durable=True) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        try:
            yield _CsvRows(text, columns) if form == CSV else _JsonLines(text, columns)
        finally:
            text.detach()  # flushed


def _write(file: _RowWriter, rows: Iterable[_Row]) -> None:
    for row in rows:
        file.write(row)
