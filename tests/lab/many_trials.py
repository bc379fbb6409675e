"""An experiment with many trials that are over, written into a store before its coordinator starts."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from everstep import wire
from everstep.coordinator.experiments.facts import Experiment, Trial
from everstep.coordinator.store.experiment_rows import Changes, write_changes
from everstep.coordinator.store.store import Store
from everstep.search.draws import trial_seed
from everstep.search.read_space import read_space
from lab.experiments import spec

SPACE: dict[str, Any] = {
    "lr": {"log": [1e-5, 1e-1]},
    "layers": {"int": [1, 8]},
    "dropout": {"double": [0, 0.5]},
    "optimizer": {"choice": ["adam", "sgd", "lion"]},
    "model": {"width": {"int": [16, 512]}, "decay": {"log": [1e-6, 1e-2]}},
}
LENGTH = 64
NAN_EVERY, NOTHING_EVERY = 97, 211  # trials whose last metric is NaN, or that never reported one


def fill_trials(store_url: str, number: int, num_trials: int, seed: int = 7) -> None:
    """As experiment `number`, and always the same trials for the same seed."""
    given = spec("random", max_trials=num_trials, hyperparameters=SPACE, seed=seed, name=f"{num_trials} trials")
    space, draw, began = read_space(SPACE), random.Random(seed), time.time() - num_trials
    trials = [_trial(number, each, space.sample(seed, each), draw.random(), began) for each in range(1, num_trials + 1)]
    best = min((each for each in trials if each.best is not None), key=lambda each: each.best or 0.0)
    summary = {
        "searcher": "random",
        "metric": "loss",
        "smaller_is_better": True,
        "unit": "batches",
        "progress": 1.0,
        "num_trials": {wire.COMPLETED: num_trials},
        "best": {"trial": best.number, "metric": best.best, "length": LENGTH},
    }
    experiment = Experiment(
        number=number,
        request=given.request,
        name=given.name,
        description="",
        labels=(),
        notes="",
        state=wire.COMPLETED,
        reason=f"{num_trials} trials are over",
        spec=given,
        kept=wire.CheckpointsKept(),
        created_at=began,
        summary=summary,
        started_at=began,
        ended_at=time.time(),
    )
    store = Store(store_url)
    changes = Changes(experiment=experiment, trials=trials)
    asyncio.run(store.write(lambda connection: write_changes(connection, changes)))
    store.close()


def _trial(experiment: int, number: int, hparams: dict[str, Any], chance: float, began: float) -> Trial:
    metric = round(chance + 1 / number, 6)
    has_none, is_odd = number % NOTHING_EVERY == 0, number % NAN_EVERY == 0
    return Trial(
        experiment=experiment,
        number=number,
        trial_id=experiment * 1_000_000 + number,
        bracket=0,
        hparams=hparams,
        seed=trial_seed(7, number),
        created_at=began,
        state=wire.CANCELED if has_none else wire.COMPLETED,
        reason=f"trained to {LENGTH} batches, the full length",
        length=0 if has_none else LENGTH,
        latest=None if has_none else "nan" if is_odd else metric,
        best=None if has_none or is_odd else metric,
        best_length=0 if has_none or is_odd else LENGTH,
        started_at=began + number,
        ended_at=began + number + 1,
    )
