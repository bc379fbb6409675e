"""What people do with experiments: create, continue, fork, look, wait. For the command line and for the Python client.

Functions that take a link to the coordinator and return values. Prints nothing, and knows no terminal."""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from everstep import wire
from everstep.errors import UsageError
from everstep.job_file.experiment import load_experiment
from everstep.job_file.load import NATIVE
from everstep.job_file.tree import dump, parse
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.storage import code_archive
from everstep.storage.code_archive import Code
from everstep.wire.experiments import COMPLETED, ENDED, MOST_SEARCH_EVENTS, MOST_TRIALS

T = TypeVar("T")

ENDING = (*ENDED, "STOPPING_COMPLETED", "STOPPING_CANCELED", "STOPPING_KILLED", "STOPPING_ERROR", "DELETED")
POLL_S = 0.5
_MOST_MEASURED = 3  # experiments whose trials tell how long a batch takes


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedExperiment:
    """An experiment that is ready to be created."""

    spec: wire.ExperimentSpec
    code: Code
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Created:
    view: wire.ExperimentView
    is_new: bool  # False: the same one, from before


# --- create -----------------------------------------------------------------------------------------


def prepare(
    file: Path | None,
    model_dir: Path | None,
    *,
    content: Mapping[str, Any] | None = None,
    changes: Sequence[str] = (),
    includes: Sequence[Path] = (),
    is_paused: bool = False,
    is_test: bool = False,
) -> PreparedExperiment:
    """Read the file or its content, and pack the code. The request is a new one."""
    loaded = load_experiment(file, changes, content=content)
    spec = as_test(loaded.spec) if is_test else loaded.spec
    if model_dir is None and loaded.system == NATIVE:
        model_dir = Path(loaded.job.workdir).expanduser()
    code = pack(model_dir, includes)
    _check_script(spec, code, model_dir)
    order = {**spec.order, "code": code.sha256, "workdir": ""}
    spec = replace(spec, request=uuid.uuid4().hex, order=order, is_paused=is_paused)
    return PreparedExperiment(spec=spec, code=code, notes=loaded.notes)


def pack(model_dir: Path | None, includes: Sequence[Path] = ()) -> Code:
    """Without a folder: the included files alone."""
    if model_dir is not None:
        return code_archive.pack(model_dir, includes=includes)
    with tempfile.TemporaryDirectory(prefix="everstep-") as empty:
        return code_archive.pack(Path(empty), includes=includes)


def _check_script(spec: wire.ExperimentSpec, code: Code, model_dir: Path | None) -> None:
    script = str(spec.order.get("script", ""))
    is_file = not (spec.order.get("is_module") or spec.order.get("is_program")) and not script.startswith("/")
    if is_file and script and str(Path(script)) not in code.files.taken:
        raise UsageError(
            f"the entrypoint {script} is not in {model_dir or 'the code, which is empty'}",
            hint="name the folder with the code: everstep e create FILE FOLDER",
            code="entrypoint-not-in-code",
        )


def as_test(spec: wire.ExperimentSpec) -> wire.ExperimentSpec:
    """Determined's test mode: one trial with one batch, one validation and one checkpoint."""
    kept: dict[str, Any] = {key: spec.searcher[key] for key in ("metric", "smaller_is_better") if key in spec.searcher}
    searcher: dict[str, Any] = {"name": "single", **kept, "max_length": {"batches": 1}}
    config = {**spec.config, "searcher": searcher, "test_mode": True}
    return replace(spec, searcher=searcher, config=config, max_restarts=0)


def create(link: CoordinatorLink, prepared: PreparedExperiment) -> wire.ExperimentView:
    _upload(link, prepared.code)
    return link(lambda coordinator: coordinator.create_experiment(prepared.spec))


def create_or_continue(link: CoordinatorLink, prepared: PreparedExperiment, folder: Path) -> Created:
    """The experiment that the same file and code created in this folder, unless it is over; else a new one."""
    _upload(link, prepared.code)
    digest, number = request_of(prepared.spec, folder), 0
    while True:
        began = time.time()
        spec = replace(prepared.spec, request=f"{digest}-{number}")
        view = link(lambda coordinator, spec=spec: coordinator.create_experiment(spec))  # type: ignore[misc]
        if view.state not in ENDING:
            return Created(view=view, is_new=view.created_at >= began)
        number += 1


def request_of(spec: wire.ExperimentSpec, folder: Path) -> str:
    """The same for the same file, code and folder."""
    told = {**asdict(spec), "request": "", "is_paused": False, "folder": str(folder.resolve())}
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _upload(link: CoordinatorLink, code: Code) -> None:
    link(lambda coordinator: coordinator.upload_code(code.sha256, code.data))


# --- from an earlier one ------------------------------------------------------------------------------


def fork_of(
    link: CoordinatorLink, experiment: int, changes: Sequence[str] = (), content: Mapping[str, Any] | None = None
) -> wire.ExperimentSpec:
    """A new experiment with the same file, but for the changes, and with the same code. `content`: keys that replace
    those of the file."""
    old = link(lambda coordinator: coordinator.experiment_config(experiment))
    spec = old.spec
    if changes or content is not None:
        new = _reread(old.written or spec.written, experiment, changes, content)
        order = {**new.order, "code": spec.order.get("code", ""), "workdir": spec.order.get("workdir", "")}
        spec = replace(new, order=order)
    return replace(spec, request=uuid.uuid4().hex, forked_from=experiment, is_paused=False)


def _reread(
    written: str, experiment: int, changes: Sequence[str], content: Mapping[str, Any] | None
) -> wire.ExperimentSpec:
    if content is not None:
        written = dump(_merged(parse(written, name=f"experiment {experiment}").plain(), content))
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder:  # read as the file was: by its text
        path = Path(folder) / f"experiment-{experiment}.yaml"
        path.write_text(written)
        return load_experiment(path, changes).spec


def continued(
    link: CoordinatorLink, experiment: int, changes: Sequence[str] = (), content: Mapping[str, Any] | None = None
) -> tuple[wire.ExperimentSpec, wire.TrialView]:
    """A fork that begins with the weights of the best trial, or of the only one."""
    view = link(lambda coordinator: coordinator.experiment(experiment))
    if view.state not in ENDED:
        raise UsageError(
            f"experiment {experiment} is {view.state}, not over",
            hint=f"`everstep e activate {experiment}` continues it",
            code="experiment-not-over",
        )
    trial = best_trial(link, view)
    spec = fork_of(link, experiment, changes, content)
    return replace(spec, source_trial_id=trial.trial_id, source_checkpoint_uuid=""), trial


def best_trial(link: CoordinatorLink, view: wire.ExperimentView) -> wire.TrialView:
    """The one with the best result; without any, the first."""
    number = view.best.trial if view.best is not None else 1
    return link(lambda coordinator: coordinator.trial(view.experiment, number))


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`, map by map."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


# --- look -------------------------------------------------------------------------------------------


def all_trials(link: CoordinatorLink, experiment: int, sort: str = "trial") -> list[wire.TrialView]:
    def page(start: int) -> tuple[list[wire.TrialView], int]:
        found = link(lambda it: it.trials(experiment, start=start, limit=MOST_TRIALS, sort=sort))
        return found.trials, found.num_found

    return list(_paged(page))


def all_checkpoints(link: CoordinatorLink, experiment: int, sort: str = "trial") -> list[wire.SavedCheckpoint]:
    def page(start: int) -> tuple[list[wire.SavedCheckpoint], int]:
        found = link(lambda it: it.checkpoints(experiment, start=start, limit=MOST_TRIALS, sort=sort))
        return found.checkpoints, found.num_found

    return list(_paged(page))


def all_experiments(link: CoordinatorLink, *, is_archived: bool = False, state: str = "") -> list[wire.ExperimentView]:
    def page(start: int) -> tuple[list[wire.ExperimentView], int]:
        found = link(lambda it: it.experiments(start=start, limit=MOST_TRIALS, state=state, is_archived=is_archived))
        return found.experiments, found.num_found

    return list(_paged(page))


def _paged(page: Callable[[int], tuple[list[T], int]]) -> Iterator[T]:
    start = 0
    while True:
        found, num_found = page(start)
        yield from found
        start += len(found)
        if not found or start >= num_found:
            return


def first_results(trials: Sequence[wire.TrialView], events: Sequence[wire.SearchEventView]) -> list[tuple[int, float]]:
    """(length, seconds) from the start of each trial to its first result: later ones may have waited for the search."""
    started = {each.trial: each.started_at for each in trials if each.started_at is not None and not each.num_restarts}
    results: list[tuple[int, float]] = []
    for row in events:
        if row.event.get("kind") == "validated" and (began := started.pop(row.event["trial"], None)) is not None:
            results.append((row.event["length"], row.time - began))
    return results


def measured_results(link: CoordinatorLink, code: str, unit: str) -> list[tuple[int, float]]:
    """(length, seconds) of the trials that have run this code, in the newest experiments with it."""
    same = [each for each in all_experiments(link, is_archived=True) if each.code == code and each.unit == unit]
    results: list[tuple[int, float]] = []
    for view in sorted(same, key=lambda each: -each.experiment)[:_MOST_MEASURED]:
        found = link(lambda it, view=view: it.search_events(view.experiment, limit=MOST_SEARCH_EVENTS))  # type: ignore[misc]
        results += first_results(all_trials(link, view.experiment), found.events)
    return results


def best_checkpoints(
    checkpoints: Sequence[wire.SavedCheckpoint], *, number: int, metric: str = "", smaller_is_better: bool = True
) -> list[wire.SavedCheckpoint]:
    """The best that still exist. `metric`: one of theirs; default: the searcher's. Those without it come last."""

    def rank(each: wire.SavedCheckpoint) -> tuple[bool, float, int]:
        value = each.metrics.get(metric) if metric else each.metric
        score = float("nan") if value is None else float(value)
        return score != score, 0.0 if score != score else score if smaller_is_better else -score, -each.step

    return sorted((each for each in checkpoints if each.state == COMPLETED), key=rank)[:number]


def download_code(link: CoordinatorLink, view: wire.ExperimentView, folder: Path) -> Path:
    """Write the experiment's code to a folder that is empty, or does not exist."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", hint="name another folder", code="folder-not-empty")
    data = link(lambda coordinator: coordinator.code(view.code))
    folder.mkdir(parents=True, exist_ok=True)
    code_archive.extract(data, view.code, folder)
    return folder


# --- act --------------------------------------------------------------------------------------------


def act(link: CoordinatorLink, experiment: int, action: str, reason: str = "") -> wire.ExperimentView:
    message = wire.ExperimentAction(action=action, reason=reason)
    return link(lambda coordinator: coordinator.act(experiment, message))


def change(link: CoordinatorLink, experiment: int, message: wire.ExperimentChange) -> wire.ExperimentView:
    return link(lambda coordinator: coordinator.change(experiment, message))


def relabel(link: CoordinatorLink, experiment: int, label: str, *, is_wanted: bool) -> wire.ExperimentView:
    """Add a label, or remove it."""
    there = link(lambda coordinator: coordinator.experiment(experiment)).labels
    labels = [each for each in there if each != label] + ([label] if is_wanted else [])
    return change(link, experiment, wire.ExperimentChange(labels=labels))


def wait(link: CoordinatorLink, experiment: int, interval_s: float = POLL_S) -> wire.ExperimentView:
    """Until it is over."""
    while True:
        view = link(lambda coordinator: coordinator.experiment(experiment))
        if view.state in ENDED:
            return view
        threading.Event().wait(interval_s)


def first_trial(link: CoordinatorLink, experiment: int, interval_s: float = POLL_S) -> wire.TrialView | None:
    """Wait for it; None if the experiment ended without one."""
    while True:
        view = link(lambda coordinator: coordinator.experiment(experiment))
        if found := link(lambda coordinator: coordinator.trials(experiment, limit=1)).trials:
            return found[0]
        if view.state in ENDED:
            return None
        threading.Event().wait(interval_s)
