"""Export to MLflow's tracking: an experiment for each experiment, a run for each trial.

Another export finds ours by their tags and updates them: it adds the points that are new, and never a second run of a
trial. MLflow cannot delete points: a step that was trained again has both values there, the newer one with the later
time. Its SQL stores keep NaN, and turn infinities into the greatest number."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from posixpath import normpath
from typing import Any
from urllib.parse import urlsplit

from everstep import env, wire
from everstep.errors import UsageError
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.export_files import ExportedExperiment
from everstep.jobs.spoken_progress import SpokenProgress
from everstep.jobs.trial_points import trial_pages
from everstep.wire.hparams import flat

TRACKING_URI = "MLFLOW_TRACKING_URI"  # MLflow's own variable
EXPERIMENT, TRIAL = "everstep.experiment", "everstep.trial"  # the tags that ours are found by
_COMPLETE = "everstep.complete"  # the end of the trial whose points are all there

_MOST_POINTS, _MOST_PARAMS, _MOST_RUNS = 1000, 100, 1000  # in one call
_MOST_KEY, _MOST_VALUE, _MOST_NAME, _MOST_TAG = 250, 6000, 500, 5000  # characters
_NO_KEY = re.compile(r"[^/\w.\- ]")  # what names may not have
_STATUS = {
    wire.QUEUED: "SCHEDULED",
    wire.COMPLETED: "FINISHED",
    wire.CANCELED: "KILLED",
    wire.ERROR: "FAILED",
}
Point = tuple[int, int, float]  # step, time in ms, value


def export_to_mlflow(
    link: CoordinatorLink, found: Sequence[ExportedExperiment], uri: str | None, tell: Callable[[str], None]
) -> Iterator[str]:
    """Yields a line for each experiment. `uri`: default: MLFLOW_TRACKING_URI."""
    uri = uri or env.value(TRACKING_URI)
    if uri is None:
        raise UsageError(
            "no MLflow store or server is named",
            hint=f"--uri http://HOST:5000 or --uri sqlite:///mlflow.db, or set {TRACKING_URI}",
            code="mlflow-uri-missing",
        )
    with _explained(uri):
        target = _Tracking(uri)
        for each in found:
            place = target.experiment(each.view)
            runs = target.runs(place)
            progress = SpokenProgress(tell, f"experiment {each.view.experiment}", len(each.trials), "trials")
            for trial in each.trials:
                run = target.run(place, runs, each, trial)
                if run.data.tags.get(_COMPLETE) != (end := str(trial.ended_at)):
                    progress.add(target.add_points(run.info.run_id, _points(link, trial)), "new points")
                    target.end(run.info.run_id, trial, {_COMPLETE: end} if trial.ended_at is not None else {})
                progress.done()
            yield f"experiment {each.view.experiment} → MLflow experiment {place}, {len(each.trials)} runs"


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    try:
        # Before it is imported: it would tell its makers that it is used, and log what it does to its database.
        env.set_default("MLFLOW_DISABLE_TELEMETRY", "true")
        env.set_default("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # more take minutes to say that nothing is there
        import mlflow  # noqa: F401  late: slow, and an extra
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise UsageError(
            f"MLflow is not installed: {error}", hint="pip install 'everstep[mlflow]'", code="mlflow-missing"
        ) from None
    try:
        yield
    except MlflowException as error:
        raise UsageError(
            f"MLflow at {without_password(uri)}: {_told(error, uri)}",
            hint="is it running, and is this the right --uri? What was exported so far stays, and another export adds "
            "the rest",
            code="mlflow-refused",
        ) from None


def without_password(uri: str) -> str:
    """http://name:secret@host → http://host"""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return "the given URI"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if "@" in parts.netloc else uri


def _told(error: Exception, uri: str) -> str:
    """Its first line. MLflow repeats the URL."""
    secret = uri.partition("://")[2].rpartition("@")[0]
    first = str(error).strip().partition("\n")[0]
    return (first.replace(f"{secret}@", "") if secret else first)[:500]


class _Tracking:
    """MLflow's client, and how our facts are written with it."""

    def __init__(self, uri: str) -> None:
        from mlflow import MlflowClient, entities

        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self._client: Any = MlflowClient(tracking_uri=uri)
        self._entities: Any = entities

    def experiment(self, view: wire.ExperimentView) -> str:
        """Its ID there; made, or brought up to date."""
        tags = {EXPERIMENT: _mark(view), **_labels(view)}
        of_ours = f"tags.`{EXPERIMENT}` = '{_mark(view)}'"
        found = self._client.search_experiments(filter_string=of_ours, max_results=1)
        if found:
            place = str(found[0].experiment_id)
            for name, value in tags.items():
                if found[0].tags.get(name) != value:
                    self._client.set_experiment_tag(place, name, value)
            return place
        return str(self._client.create_experiment(self._free_name(view), tags=tags))

    def _free_name(self, view: wire.ExperimentView) -> str:
        """MLflow has one experiment of a name, deleted ones included."""
        name = (view.name or f"everstep experiment {view.experiment}").strip()[: _MOST_NAME - 20]
        for each in (name, f"{name} ({view.experiment})", *(f"{name} ({view.experiment}, {n})" for n in range(2, 100))):
            if self._client.get_experiment_by_name(each) is None:
                return each
        raise UsageError(
            f"MLflow has 100 experiments with names like {name!r}", hint="delete some there", code="mlflow-names"
        )

    def runs(self, place: str) -> dict[str, Any]:
        """Those of our trials, by the trial's number."""
        found: dict[str, Any] = {}
        token: str | None = None
        while True:
            page = self._client.search_runs([place], max_results=_MOST_RUNS, page_token=token)
            found |= {run.data.tags[TRIAL]: run for run in page if TRIAL in run.data.tags}
            if not (token := page.token):
                return found

    def run(self, place: str, runs: Mapping[str, Any], each: ExportedExperiment, trial: wire.TrialView) -> Any:
        """Made, or brought up to date: its parameters and tags."""
        tags = _tags(each, trial)
        run = runs.get(str(trial.trial))
        if run is None:
            began_at = trial.started_at or trial.created_at
            name = f"trial {trial.trial}"
            run = self._client.create_run(place, start_time=_ms(began_at), tags=tags, run_name=name)
            tags = {}
        changed = {name: value for name, value in tags.items() if run.data.tags.get(name) != value}
        named = {key: _cut(value, _MOST_VALUE) for key, value in _keys(flat(trial.hparams)).items()}
        params = {key: value for key, value in named.items() if key not in run.data.params}
        for some in _parts(params.items(), _MOST_PARAMS):
            self._client.log_batch(run.info.run_id, params=[self._entities.Param(*pair) for pair in some])
        self._set_tags(run.info.run_id, changed)
        return run

    def add_points(self, run: str, series: Iterable[tuple[str, Iterator[Point]]]) -> int:
        """Those that it does not have. Returns how many."""
        added = 0
        for key, points in series:
            there = {_known(it.step, it.timestamp, it.value) for it in self._client.get_metric_history(run, key)}
            new = (point for point in points if _known(*point) not in there)
            for some in _parts(new, _MOST_POINTS):
                metrics = [self._entities.Metric(key, value, time, step) for step, time, value in some]
                self._client.log_batch(run, metrics=metrics)
                added += len(some)
        return added

    def end(self, run: str, trial: wire.TrialView, tags: Mapping[str, str]) -> None:
        """After its points: a run that is over is complete."""
        status = _STATUS.get(trial.state, "RUNNING" if trial.started_at is not None else "SCHEDULED")
        if trial.ended_at is None:
            self._client.update_run(run, status=status)
        else:
            self._client.set_terminated(run, status=status, end_time=_ms(trial.ended_at))
        self._set_tags(run, tags)

    def _set_tags(self, run: str, tags: Mapping[str, str]) -> None:
        for some in _parts(tags.items(), _MOST_PARAMS):
            self._client.log_batch(run, tags=[self._entities.RunTag(*pair) for pair in some])


# --- facts as MLflow has them: pure ---


def _mark(view: wire.ExperimentView) -> str:
    """Unique among all coordinators: each counts its experiments from 1."""
    return f"{view.experiment} of {view.created_at:.6f}"


def _labels(view: wire.ExperimentView) -> dict[str, str]:
    notes = "\n\n".join(filter(None, (view.description, view.notes)))
    facts = {
        "everstep.state": view.state,
        "everstep.searcher": view.searcher,
        "everstep.metric": view.metric,
        "everstep.labels": ", ".join(view.labels),
        "everstep.owner": view.owner,
        "mlflow.note.content": notes,
    }
    return {name: _cut(value, _MOST_TAG) for name, value in facts.items() if value}


def _tags(each: ExportedExperiment, trial: wire.TrialView) -> dict[str, str]:
    uris = {it.uuid: it.uri for it in each.checkpoints}
    facts = {
        EXPERIMENT: _mark(each.view),
        TRIAL: str(trial.trial),
        "everstep.trial_id": str(trial.trial_id),
        "everstep.job": trial.job,
        "everstep.state": trial.state,
        "everstep.reason": trial.reason,
        "everstep.seed": str(trial.seed),
        "everstep.length": f"{trial.length} {each.view.unit}",
        "everstep.best": "" if trial.best is None else f"{each.view.metric} {trial.best} after {trial.best_length}",
        "everstep.restarts": str(trial.num_restarts),
        "everstep.best_checkpoint": trial.best_checkpoint,
        "everstep.best_checkpoint_uri": uris.get(trial.best_checkpoint, ""),
        "everstep.latest_checkpoint": trial.latest_checkpoint,
    }
    return {name: _cut(value, _MOST_TAG) for name, value in facts.items() if value}


def _keys(values: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """By names that MLflow takes."""
    found: dict[str, str] = {}
    for name, value in values:
        found[metric_key(name, found)] = value if isinstance(value, str) else json.dumps(value)
    return found


def metric_key(name: str, taken: Iterable[str] = ()) -> str:
    """A name with the characters that MLflow allows; another one if that is taken."""
    key = normpath(_NO_KEY.sub("_", name)[:_MOST_KEY].lstrip("/") or "_")
    key = "_" if key in (".", "..") or key.startswith("../") else key
    number = 1
    found = key
    while found in taken:
        number += 1
        found = f"{key[: _MOST_KEY - 8]}_{number}"
    return found


def _points(link: CoordinatorLink, trial: wire.TrialView) -> Iterator[tuple[str, Iterator[Point]]]:
    """Series by series."""
    pages = trial_pages(link, trial.job)
    keys: dict[str, str] = {}
    page = next(pages, None)
    while page is not None:
        name = page.name
        key = keys.setdefault(name, metric_key(name, keys.values()))
        found: list[Point] = []
        while page is not None and page.name == name:
            times = map(_ms, page.first_times)
            found += zip(page.first_steps, times, map(float, page.firsts), strict=True)
            page = next(pages, None)
        yield key, iter(found)


def _known(step: int, time_ms: int, value: float) -> tuple[int, int, float | str]:
    """As its SQL stores have it."""
    if math.isnan(value):
        return step, time_ms, "nan"
    most = sys.float_info.max
    return step, time_ms, min(max(value, -most), most)


def _ms(time: float) -> int:
    return round(1000 * time)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _parts(items: Iterable[Any], most: int) -> Iterator[list[Any]]:
    it = iter(items)
    while some := list(islice(it, most)):
        yield some
