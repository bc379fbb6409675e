"""The keys of `pool.py` that are measured with real training: searches, moves of a slot, an urgent experiment, a pause.

The time of each micro-batch comes from the trials themselves, by the clock of this machine. What a move costs:
`pool_moves.py`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import pool_moves, pool_trace
from benchmarks.figures import Figures
from benchmarks.live_pool import LivePool, open_pool
from everstep import wire
from everstep.jobs import experiments

SCRIPTS = Path(__file__).parent / "scripts" / "pool"
IMAGES = Path(__file__).parents[1] / "examples" / "data" / "fashion-mnist-8k.npz"
PATIENCE_S = 60.0
RUNGS, DIVISOR = 4, 4
MICRO_BATCHES = 24  # of a batch: 1, 2, 3, 4, 6 and 8 slots have equal parts
MICRO_BATCH_SIZE = 16
NUM_MOVES = 8
MOVED_MICRO_BATCH_S = 0.02
MOVING, MOVED = 6, 12  # slots of two trials, and micro-batches of their batches: 2, 3 and 4 slots have equal parts
AT_REST_S = 5.0  # between two moves: a trial is not resized again for some seconds
AFTER_MOVE_S = 3.0
LEAST_WIDTH = 4
NUM_PAUSED = 8
LEAST_SLOTS = 4  # to move one and keep others
_LONG = 1_000_000
PARTS = ("search", "move", "preempt", "pause", "events", "fixed")
KEYS = (
    *("elastic_s", "one_slot_s", "best_fixed_s", "best_fixed_slots", "move_stop_s", "slot_useful_s", "preempt_s"),
    *("pause_s", "activate_s", "events_per_s"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    num_slots: int
    num_trials: int
    full_s: float  # of a full trial on one slot
    fixed: tuple[int, ...]  # numbers of slots per trial to compare with, besides 1
    num_rounds: int
    length: int  # batches of a full trial; with 256, rungs are at 4, 16, 64, 256
    trace: Path | None = None  # a file for that of the elastic search


def measure(settings: Settings, parts: Sequence[str], figures: Figures) -> None:
    """In this order. With the part `fixed`, `search` leaves all fixed numbers but the first to it."""
    first, later = settings.fixed[:1], settings.fixed[1:]
    makespans: dict[int | None, float] = {}  # by the number of slots per trial; None: elastic
    num_slots = max(settings.num_slots, LEAST_SLOTS)
    acts: dict[str, tuple[int, Callable[[LivePool], None]]] = {
        "search": (
            settings.num_slots,
            lambda pool: _measure_searches(
                pool, settings, (None, 1, *(first if "fixed" in parts else settings.fixed)), makespans, figures
            ),
        ),
        "move": (max(num_slots, MOVING), lambda pool: _measure_moves(pool, max(num_slots, MOVING), figures)),
        "preempt": (num_slots, lambda pool: _measure_urgency(pool, num_slots, figures)),
        "pause": (NUM_PAUSED, lambda pool: _measure_pause(pool, figures)),
        "fixed": (settings.num_slots, lambda pool: _measure_searches(pool, settings, later, makespans, figures)),
    }
    for name in parts:
        began = time.monotonic()
        with figures.part(name):
            if name == "events":
                _measure_events(figures)
            else:
                slots, act = acts[name]
                with open_pool(slots) as pool:
                    act(pool)
        print(f"{name}: measured in {time.monotonic() - began:.0f} s", flush=True)


# --- searches ---------------------------------------------------------------------------------------


def _measure_searches(
    pool: LivePool,
    settings: Settings,
    sizes: Sequence[int | None],
    makespans: dict[int | None, float],
    figures: Figures,
) -> None:
    _warm(pool, settings.num_slots)
    width = _width_for(settings.full_s / (settings.length * MICRO_BATCHES))
    times: dict[int | None, list[float]] = {size: [] for size in sizes}
    for number in range(settings.num_rounds):
        for size in sizes:
            name = "elastic" if size is None else f"fixed-{size}"
            content = _search(pool, f"{name}-{number}", settings, width, size)
            began = time.monotonic()
            experiment = pool.create(SCRIPTS, content, lambda spec, size=size: _sized(spec, size))
            view = pool.wait(experiment)
            times[size].append(time.monotonic() - began)
            print(f"round {number}: {name}: {times[size][-1]:.1f} s, best {view.best}", flush=True)
            makespans[size] = round(median(times[size]), 2)
            figures.put(**_compared(makespans))
            if size is None:
                with figures.part("trace"):
                    _simulate(pool, experiment, settings, _times(_folder(pool, f"{name}-{number}")), figures)


def _simulate(
    pool: LivePool, experiment: int, settings: Settings, marks: Mapping[str, np.ndarray], figures: Figures
) -> None:
    """The same search in virtual time, with what was measured."""
    trace = pool_trace.record(pool.link, pool.folder / "store.db", experiment, marks, settings.num_slots)
    if settings.trace is not None:
        pool_trace.write(trace, settings.trace)
    speeds = {size: round(per_s, 2) for size, per_s in trace.batches_per_s.items()}
    print(
        f"measured: batches per second {speeds}, start {trace.start_s:.2f} s, regroup {trace.regroup_s:.2f} s, "
        f"leave {trace.leave_s:.2f} s, validate {trace.validate_s:.2f} s",
        flush=True,
    )
    simulated_s = pool_trace.replayed_s(trace)
    figures.put(
        makespan_s=round(trace.makespan_s, 2),
        simulated_s=round(simulated_s, 2),
        simulated_error=round(abs(simulated_s / trace.makespan_s - 1), 3),
    )


def _compared(makespans: Mapping[int | None, float]) -> dict[str, Any]:
    fixed = {size: s for size, s in makespans.items() if size is not None}
    best = min(fixed, key=lambda size: fixed[size], default=None)
    found = {"elastic_s": makespans.get(None), "one_slot_s": fixed.get(1)}
    if best is not None:
        found |= {"best_fixed_s": fixed[best], "best_fixed_slots": best}
    return {name: value for name, value in found.items() if value is not None}


def _warm(pool: LivePool, num_slots: int) -> None:
    """Each slot has run a trial: the first one of a node imports torch."""
    searcher = {"name": "random", "metric": "loss", "max_trials": num_slots, "max_length": {"batches": 2}}
    began = time.monotonic()
    pool.wait(
        pool.create(
            SCRIPTS, _content(pool, "warm", searcher, width=LEAST_WIDTH, rates={"log": [1e-4, 1.0]}, micro_batches=1)
        )
    )
    print(f"the pool is warm after {time.monotonic() - began:.1f} s", flush=True)


def _search(pool: LivePool, name: str, settings: Settings, width: int, size: int | None) -> dict[str, Any]:
    """`size`: a fixed number of slots for each trial, and decisions in the order of arrival, as in other systems."""
    searcher = {
        "name": "adaptive_asha",
        "mode": "aggressive",
        "metric": "loss",
        "max_trials": settings.num_trials,
        "max_length": {"batches": settings.length},
        "max_rungs": RUNGS,
        "divisor": DIVISOR,
        "max_concurrent_trials": 0 if size is None else max(1, settings.num_slots // size),
        "order": "exact" if size is None else "arrival",
    }
    return _content(pool, name, searcher, width=width, rates={"log": [1e-4, 1.0]}, micro_batches=MICRO_BATCHES)


def _sized(spec: wire.ExperimentSpec, size: int | None) -> wire.ExperimentSpec:
    return spec if size is None else replace(spec, min_slots=size, max_slots=size)


def _width_for(micro_batch_s: float) -> int:
    """How wide the network must be for a micro-batch to take this long on one core of this machine."""
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(1)
    images = torch.rand(MICRO_BATCH_SIZE, 1, 28, 28)
    width = LEAST_WIDTH
    while True:
        layers = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        model = nn.Sequential(*layers, nn.MaxPool2d(4), nn.Flatten(), nn.Linear(49 * width, 10))
        times = []
        for _ in range(5):
            began = time.perf_counter()
            functional.cross_entropy(model(images), torch.zeros(MICRO_BATCH_SIZE, dtype=torch.long)).backward()
            times.append(time.perf_counter() - began)
        if min(times) >= micro_batch_s:
            return width
        width += 2 if width < 32 else 8


# --- one slot, from trial to trial ------------------------------------------------------------------


def _measure_moves(pool: LivePool, num_slots: int, figures: Figures) -> None:
    """In a full pool, two trials share some slots, half of them each. By their weights, one slot moves to one of them,
    then back. A slot must help clearly, or none is given: so the two are small, and never have more slots than these,
    as the first would while it is alone."""

    def narrow(spec: wire.ExperimentSpec) -> wire.ExperimentSpec:
        return replace(spec, max_slots=half + 1)

    half, width = MOVING // 2, _width_for(MOVED_MICRO_BATCH_S)
    others = _fill(pool, num_slots - MOVING, 1, "others", width, priority=1) if num_slots > MOVING else None
    folders = [_folder(pool, f"move-{each}") for each in (1, 2)]
    first, second = (_endless(pool, f"move-{each}", micro_batches=MOVED, width=width, change=narrow) for each in (1, 2))
    _change_weight(pool, first, half * half - 1)
    _change_weight(pool, second, half * half - 1)
    _await(lambda: _sizes(folders) == (half, half), "both trials to have half of the slots")
    stops, useful = [], []
    for turn in range(NUM_MOVES):
        time.sleep(AT_REST_S)
        more, began = (1, 0, -1, 0)[turn % 4], time.time()
        _change_weight(pool, second, _weight_for(half, more))
        try:
            _await(lambda more=more: _sizes(folders) == (half - more, half + more), "a move", patience_s=20.0)
        except TimeoutError as error:
            print(f"move {turn}: {error}; the trials have {_sizes(folders)} slots", flush=True)
            continue
        time.sleep(AFTER_MOVE_S)
        ended, marks = time.time(), [_marks(each) for each in folders]
        idle_s = pool_moves.idle_s(marks, began, ended)
        if idle_s is None:
            print(f"move {turn}: not one slot from one trial to the other", flush=True)
            continue
        found = [pool_moves.stop_of(each, began, ended) for each in marks]
        stops += [each.added_s for each in found]
        useful.append(idle_s)
        told = ", ".join(f"{each.added_s:.3f} s ({each.longest_s:.3f}, usually {each.usual_s:.3f})" for each in found)
        print(f"move {turn}: stops {told}; slot useful after {idle_s:.3f} s", flush=True)
        print("\n".join(pool_moves.explained(pool.events, began, ended)), flush=True)
        figures.put(move_stop_s=round(median(stops), 3), slot_useful_s=round(median(useful), 3))
    for number in (first, second, *([others] if others is not None else [])):
        experiments.act(pool.link, number, "kill")
        experiments.wait(pool.link, number, 0.2)


def _sizes(folders: Sequence[Path]) -> tuple[int, ...]:
    return tuple(int(_num_computing(each)) for each in folders)


def _change_weight(pool: LivePool, number: int, weight: float) -> None:
    experiments.change(pool.link, number, wire.ExperimentChange(weight=weight))


def _weight_for(half: int, more: int) -> float:
    """Of the second trial, so that it has `more` slots more than half of all. The first one's stays the same: if both
    changed, other slots would move between the two changes."""
    return (half * half - 1) * (half + more) / (half - more)


# --- an urgent experiment ---------------------------------------------------------------------------


def _measure_urgency(pool: LivePool, num_slots: int, figures: Figures) -> None:
    times = []
    each_slots = num_slots // 4
    low, low_slots = _fill(pool, 4, each_slots, "low"), 4 * each_slots
    for turn in range(5):
        _await(lambda: _num_computing(_folder(pool, "low")) == low_slots, "the low ones to fill the pool")
        name = f"urgent-{turn}"

        def urgent(spec: wire.ExperimentSpec) -> wire.ExperimentSpec:
            return replace(spec, min_slots=num_slots, scheduling=replace(spec.scheduling, priority=1))

        number = _endless(pool, name, micro_batches=num_slots, change=urgent)
        began = time.time()
        _await(lambda name=name: _num_computing(_folder(pool, name)) == num_slots, "the urgent one to compute")
        first = sorted(each[0] for each in _times(_folder(pool, name)).values())
        times.append(first[num_slots - 1] - began)
        print(f"urgent {turn}: {times[-1]:.2f} s", flush=True)
        if turn:  # the first one warms
            figures.put(preempt_s=round(median(times[1:]), 3))
        experiments.act(pool.link, number, "kill")
        experiments.wait(pool.link, number, 0.2)
    experiments.act(pool.link, low, "kill")
    experiments.wait(pool.link, low, 0.2)


def _fill(
    pool: LivePool, num_trials: int, each: int, name: str, width: int = LEAST_WIDTH, priority: int | None = None
) -> int:
    """An experiment of trials that take `each` slots."""

    def change(spec: wire.ExperimentSpec) -> wire.ExperimentSpec:
        scheduling = spec.scheduling if priority is None else replace(spec.scheduling, priority=priority)
        return replace(spec, min_slots=each, max_slots=each, scheduling=scheduling)

    searcher = {"name": "random", "metric": "loss", "max_trials": num_trials, "max_length": {"batches": _LONG}}
    content = _content(pool, name, searcher, width=width, rates={"log": [1e-4, 1e-2]}, micro_batches=each)
    number = pool.create(SCRIPTS, content, change)
    _await(lambda: _num_computing(_folder(pool, name)) == num_trials * each, f"{name} to compute")
    return number


# --- a pause ----------------------------------------------------------------------------------------


def _measure_pause(pool: LivePool, figures: Figures) -> None:
    searcher = {"name": "random", "metric": "loss", "max_trials": NUM_PAUSED, "max_length": {"batches": _LONG}}
    content = _content(pool, "pause", searcher, width=LEAST_WIDTH, rates={"log": [1e-4, 1e-2]}, micro_batches=1)
    number, marks = pool.create(SCRIPTS, content), _folder(pool, "pause")
    pauses, activations = [], []
    for _ in range(4):
        _await(lambda: _num_computing(marks) == NUM_PAUSED, "all trials to compute")
        began = time.time()
        experiments.act(pool.link, number, "pause")
        _await(lambda: _view(pool, number).num_slots == 0, "the pause", pause_s=0.01)
        pauses.append(time.time() - began)
        began = time.time()
        experiments.act(pool.link, number, "activate")
        _await(lambda since=began: _num_computing(marks, since) == NUM_PAUSED, "all trials to continue", pause_s=0.01)
        activations.append(
            min(float(each[each > began][0]) for each in _times(marks).values() if each[-1] > began) - began
        )
        print(f"pause {pauses[-1]:.2f} s, activate {activations[-1]:.2f} s", flush=True)
    experiments.act(pool.link, number, "kill")
    experiments.wait(pool.link, number, 0.2)
    figures.put(pause_s=round(median(pauses[1:]), 3), activate_s=round(median(activations[1:]), 3))


# --- events of searches ---------------------------------------------------------------------------------


def _measure_events(figures: Figures) -> None:
    command = [sys.executable, str(Path(__file__).with_name("pool_events.py"))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures.put(events_per_s=json.loads(done.stdout.splitlines()[-1])["events_per_s"])


# --- experiments and their marks --------------------------------------------------------------------


def _endless(
    pool: LivePool,
    name: str,
    *,
    micro_batches: int,
    width: int = LEAST_WIDTH,
    change: Callable[[wire.ExperimentSpec], wire.ExperimentSpec] = lambda spec: spec,
) -> int:
    searcher = {"name": "single", "metric": "loss", "max_length": {"batches": _LONG}}
    content = _content(pool, name, searcher, width=width, rates=1e-3, micro_batches=micro_batches)
    return pool.create(SCRIPTS, content, change)


def _content(
    pool: LivePool, name: str, searcher: Mapping[str, Any], *, width: int, rates: Any, micro_batches: int
) -> dict[str, Any]:
    return {
        "name": name,
        "entrypoint": "python3 trial.py",
        "resources": {"slots_per_trial": micro_batches},
        "hyperparameters": {
            "global_batch_size": MICRO_BATCH_SIZE * micro_batches,
            "learning_rate": rates,
            "width": width,
            "images": str(IMAGES),
            "marks": str(_folder(pool, name)),
        },
        "searcher": dict(searcher),
        "checkpoint_storage": {"type": "shared_fs", "host_path": str(pool.folder / "checkpoints")},
    }


def _view(pool: LivePool, number: int) -> wire.ExperimentView:
    return pool.link(lambda coordinator: coordinator.experiment(number))


def _folder(pool: LivePool, name: str) -> Path:
    folder = pool.folder / "marks" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _marks(folder: Path) -> dict[str, np.ndarray]:
    """When each process began its micro-batches, and of which step they are."""
    found = {each.name: np.fromfile(each, dtype="d") for each in folder.iterdir()}
    return {name: rows[: len(rows) // 2 * 2].reshape(-1, 2) for name, rows in found.items() if len(rows) > 1}


def _times(folder: Path) -> dict[str, np.ndarray]:
    return {name: rows[:, 0] for name, rows in _marks(folder).items()}


def _num_computing(folder: Path, since: float = 0.0) -> int:
    """Processes that have begun a micro-batch within the last second."""
    since = max(since, time.time() - 1.0)
    return sum(times[-1] > since for times in _times(folder).values())


def _await(look: Callable[[], Any], what: str, pause_s: float = 0.05, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not look():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {patience_s:.0f} s for {what}")
        time.sleep(pause_s)
