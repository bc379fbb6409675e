"""The trace of a search as it happened in a pool, and how long SimulatedPool takes for the same one.

A trace has the search, the results of its trials, and what the simulation needs besides: batches per second by the
number of slots, and how long a start, a change of the number of workers, leaving and a validation take. All of these
are medians, but for the speeds, which are means. `python benchmarks/pool_trace.py FILE` replays a trace."""

from __future__ import annotations

import json
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from sqlalchemy import create_engine, select

sys.path.insert(0, str(Path(__file__).parents[1]))

from everstep import wire
from everstep.coordinator.pool.facts import Assignment
from everstep.coordinator.pool.speeds import SpeedCurve
from everstep.coordinator.store.tables import ASSIGNMENTS
from everstep.jobs import experiments
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.testing import SimulatedPool

LONG_S = 10.0  # a trial that has waited does not tell how long a change takes


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolTrace:
    num_slots: int
    searcher: dict[str, Any]
    hyperparameters: dict[str, Any]
    seed: int
    min_slots: int
    max_slots: int
    results: list[tuple[dict[str, Any], int, float]]  # hyperparameters, length, metric
    batches_per_s: dict[int, float]  # by number of slots
    start_s: float  # from an order to the first micro-batch
    regroup_s: float  # a trial stands still when workers come or leave
    leave_s: float  # from the end of a trial until its slot is free
    validate_s: float  # from the last micro-batch to the search's decision
    makespan_s: float  # from the beginning of the search until it was over


def replayed_s(trace: PoolTrace) -> float:
    """The makespan of the same search in virtual time."""
    metrics = {(_key(hparams), length): metric for hparams, length, metric in trace.results}
    speeds = SpeedCurve(trace.batches_per_s)
    pool = SimulatedPool(
        nodes={"a": trace.num_slots},
        start_s=trace.start_s,
        regroup_s=trace.regroup_s,
        leave_s=trace.leave_s,
        validate_s=trace.validate_s,
    )
    pool.submit(
        searcher=trace.searcher,
        hyperparameters=trace.hyperparameters,
        curve=lambda hparams, length: metrics[_key(hparams), length],
        batches_per_s=lambda hparams, slots: speeds.at(slots),
        seed=trace.seed,
        min_slots=trace.min_slots,
        max_slots=trace.max_slots,
    )
    return pool.run().makespan_s


def _key(hparams: Mapping[str, Any]) -> str:
    return json.dumps(hparams, sort_keys=True)


def record(
    link: CoordinatorLink, store: Path, experiment: int, marks: Mapping[str, np.ndarray], num_slots: int
) -> PoolTrace:
    """`store`: the coordinator's SQLite file. `marks`: when each process began its micro-batches, by `TRIAL-PID`."""
    spec = link(lambda it: it.experiment_config(experiment)).spec
    trials = {each.trial: each for each in experiments.all_trials(link, experiment)}
    by_trial: dict[int, list[np.ndarray]] = defaultdict(list)
    numbers = {str(each.trial_id): number for number, each in trials.items()}
    for name, times in marks.items():
        by_trial[numbers[name.partition("-")[0]]].append(times)
    given = _assignments(store, experiment)
    events = link(lambda it: it.search_events(experiment, limit=wire.experiments.MOST_SEARCH_EVENTS)).events
    validated = [(each.time, each.event) for each in events if each.event["kind"] == "validated"]
    at: dict[int, list[float]] = defaultdict(list)
    for time, event in validated:
        at[event["trial"]].append(time)
    steps = [each for number, its in by_trial.items() for each in _steps(its, spec.num_micro_batches, at[number])]
    speeds = _speeds(steps)
    curve = SpeedCurve(speeds)
    return PoolTrace(
        num_slots=num_slots,
        searcher=spec.searcher,
        hyperparameters=spec.hyperparameters,
        seed=spec.seed,
        min_slots=spec.min_slots,
        max_slots=spec.max_slots,
        results=[(trials[each["trial"]].hparams, each["length"], each["metric"]) for _, each in validated],
        batches_per_s=speeds,
        start_s=_median(_starts(given, by_trial)),
        regroup_s=max(0.0, _median(each.seconds - 1 / curve.at(each.size) for each in steps if each.is_change)),
        leave_s=_median(
            each.ended_at - at[each.trial][-1] for each in given if each.ended_at is not None and at[each.trial]
        ),
        validate_s=_median(
            each - last for number, its in at.items() for each in its if (last := _last(by_trial[number], each))
        ),
        makespan_s=round(events[-1].time - events[0].time, 3),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    size: int  # number of workers in the next one, if it is a change
    seconds: float
    is_change: bool


def _steps(processes: Sequence[np.ndarray], num_micro_batches: int, validated: Sequence[float]) -> Iterator[_Step]:
    """From the beginning of each batch to that of the next one, without those that a validation is in."""
    times = np.concatenate(processes)
    names = np.repeat(np.arange(len(processes)), [len(each) for each in processes])
    order = np.argsort(times, kind="stable")
    batches = [order[place : place + num_micro_batches] for place in range(0, len(order), num_micro_batches)]
    workers = [frozenset(names[each].tolist()) for each in batches]
    begun = [float(times[each[0]]) for each in batches]
    for place in range(len(batches) - 1):
        began, ended = begun[place], begun[place + 1]
        if bisect_right(validated, began) != bisect_right(validated, ended) or not workers[place] & workers[place + 1]:
            continue
        is_change = workers[place] != workers[place + 1]
        if ended - began < LONG_S:
            yield _Step(size=len(workers[place + 1]), seconds=ended - began, is_change=is_change)


def _speeds(steps: Iterable[_Step]) -> dict[int, float]:
    found: dict[int, list[float]] = defaultdict(list)
    for each in steps:
        if not each.is_change:
            found[each.size].append(each.seconds)
    return {size: 1 / fmean(seconds) for size, seconds in sorted(found.items())}


def _starts(given: Sequence[Assignment], by_trial: Mapping[int, Sequence[np.ndarray]]) -> Iterator[float]:
    """Each process belongs to the newest order of its trial that no earlier process belongs to."""
    for number, processes in by_trial.items():
        orders = [each.began_at for each in given if each.trial == number]
        for first in sorted(float(each[0]) for each in processes):
            known = [each for each in orders if each < first]
            if known:
                orders.remove(known[-1])
                yield first - known[-1]


def _last(processes: Sequence[np.ndarray], before: float) -> float:
    return max((float(each[each < before][-1]) for each in processes if (each < before).any()), default=0.0)


def _median(values: Iterable[float]) -> float:
    found = list(values)
    return round(median(found), 4) if found else 0.0


def _assignments(store: Path, experiment: int) -> list[Assignment]:
    engine = create_engine(f"sqlite:///{store}")
    wanted = select(ASSIGNMENTS).where(ASSIGNMENTS.c.experiment == experiment).order_by(ASSIGNMENTS.c.number)
    with engine.connect() as connection:
        found = [Assignment(**row) for row in connection.execute(wanted).mappings()]
    engine.dispose()
    return found


def write(trace: PoolTrace, path: Path) -> None:
    path.write_text(json.dumps(asdict(trace)))


def read(path: Path) -> PoolTrace:
    found = json.loads(path.read_text())
    speeds = {int(size): per_s for size, per_s in found["batches_per_s"].items()}
    return PoolTrace(**{**found, "batches_per_s": speeds})


if __name__ == "__main__":
    given = read(Path(sys.argv[1]))
    print(f"real {given.makespan_s:.2f} s, simulated {replayed_s(given):.2f} s")
