"""What people do with experiments: look at them, change them, wait for them. For the command line and for the Python
client. `new_experiments` creates them.

Functions take a link to the coordinator and return values. Prints nothing, and knows of no terminal."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from everstep import wire
from everstep.errors import UsageError
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.search.events import finite
from everstep.wire.experiments import COMPLETED, ENDED, MOST_SEARCH_EVENTS, MOST_TRIALS

T = TypeVar("T")

POLL_S = 0.5
_MOST_MEASURED = 3  # experiments whose trials show how long a batch takes


# --- look -------------------------------------------------------------------------------------------


def all_trials(link: CoordinatorLink, experiment: int, sort: str = "trial") -> list[wire.TrialView]:
    def page(start: int) -> tuple[list[wire.TrialView], int]:
        found = link(lambda it: it.trials(experiment, start=start, limit=MOST_TRIALS, sort=sort))
        return found.trials, found.num_found

    return list(paged(page))


def all_checkpoints(link: CoordinatorLink, experiment: int, sort: str = "trial") -> list[wire.SavedCheckpoint]:
    def page(start: int) -> tuple[list[wire.SavedCheckpoint], int]:
        found = link(lambda it: it.checkpoints(experiment, start=start, limit=MOST_TRIALS, sort=sort))
        return found.checkpoints, found.num_found

    return list(paged(page))


def all_experiments(link: CoordinatorLink, *, is_archived: bool = False, state: str = "") -> list[wire.ExperimentView]:
    def page(start: int) -> tuple[list[wire.ExperimentView], int]:
        found = link(lambda it: it.experiments(start=start, limit=MOST_TRIALS, state=state, is_archived=is_archived))
        return found.experiments, found.num_found

    return list(paged(page))


def paged(page: Callable[[int], tuple[list[T], int]]) -> Iterator[T]:
    start = 0
    while True:
        found, num_found = page(start)
        yield from found
        start += len(found)
        if not found or start >= num_found:
            return


def first_results(trials: Sequence[wire.TrialView], events: Sequence[wire.SearchEventView]) -> list[tuple[int, float]]:
    """(length, seconds) from the start of each trial to its first result; later ones may include waits."""
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
    checkpoints: Sequence[wire.SavedCheckpoint],
    view: wire.ExperimentView,
    *,
    number: int | None = None,
    metric: str | None = None,
    smaller_is_better: bool | None = None,
) -> list[wire.SavedCheckpoint]:
    """The best that still exist; those without a finite one come last. `metric`, `smaller_is_better`: default: the
    searcher's. `number`: default: all."""
    there = [each for each in checkpoints if each.state == COMPLETED]
    values = [metrics_of(each, view) for each in there]
    wanted = view.metric if metric is None else metric
    if metric is not None and there:
        _check_metric(metric, sorted({name for each in values for name in each}))
    is_smaller = view.smaller_is_better if smaller_is_better is None else smaller_is_better

    def rank(number: int) -> tuple[bool, float, int, int]:
        score = finite(float(values[number].get(wanted, "nan")))
        each = there[number]
        return score is None, (score or 0.0) * (1 if is_smaller else -1), each.trial, -each.step

    return [there[each] for each in sorted(range(len(there)), key=rank)][:number]


def metrics_of(checkpoint: wire.SavedCheckpoint, view: wire.ExperimentView) -> dict[str, Any]:
    """Also the searcher's, which may come from a result instead of the checkpoint's report."""
    return {**checkpoint.metrics, **({} if checkpoint.metric is None else {view.metric: checkpoint.metric})}


def _check_metric(metric: str, names: Sequence[str]) -> None:
    if metric in names:
        return
    there = f"they have {', '.join(names)}" if names else "they have no metrics"
    near = difflib.get_close_matches(metric, names, n=1)
    hint = f"did you mean {near[0]}?" if near else "without a metric, the searcher's decides"
    raise UsageError(f"no checkpoint has the metric {metric}: {there}", hint=hint, code="metric-unknown")


def download_code(link: CoordinatorLink, view: wire.ExperimentView, folder: Path) -> Path:
    """Write the experiment's code to a folder that is empty, or does not exist."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", hint="name another folder", code="folder-not-empty")
    data = link(lambda coordinator: coordinator.code(view.code))
    folder.mkdir(parents=True, exist_ok=True)
    from everstep.storage import code_archive  # late: most commands do without

    code_archive.extract(data, view.code, folder)
    return folder


# --- act --------------------------------------------------------------------------------------------


def act(link: CoordinatorLink, experiment: int, action: str, reason: str = "") -> wire.ExperimentView:
    if action == "activate":
        link.claim()
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
    """Wait until it is over."""
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
