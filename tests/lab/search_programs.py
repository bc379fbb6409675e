"""Search programs as nothing but their posts, and searches by Optuna on one slot and on several."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

from everstep import wire
from everstep.client.calls import Coordinator
from lab.command import until
from lab.experiments import SPACE, ToyTrials, patiently, spec


def create(name: str, **hparams: object) -> dict:
    return {"kind": "create", "request_id": name, "hparams": hparams}


def validate(name: str, length: int) -> dict:
    return {"kind": "validate_after", "request_id": name, "length": length}


def close(name: str) -> dict:
    return {"kind": "close", "request_id": name}


def post(after: int, *operations: dict, state: str = "") -> wire.SearchOperations:
    return wire.SearchOperations(after_event=after, operations=list(operations), state=state)


def custom(**more: object) -> wire.ExperimentSpec:
    searcher = {"name": "custom", "metric": "loss", "unit": "batches"}
    return wire.ExperimentSpec(request=uuid.uuid4().hex, searcher=searcher, hyperparameters=SPACE, **more)


def tpe(at_once: int) -> wire.ExperimentSpec:
    return spec("tpe", max_trials=9, cohort=3, max_concurrent_trials=at_once)


def searched(
    server: Any, at_once: int, order: random.Random | None, on_trial: Callable[[int], None] = lambda _trial: None
) -> list[Any]:
    """The trials of a search on so many slots, with results that come in any order."""
    with Coordinator(server.url, server.token, "none") as people:
        toys = ToyTrials(server.url, server.token, people.create_experiment(tpe(at_once)).experiment)

        def is_over() -> bool:
            open_ = [each.trial for each in patiently(toys.trials) if each.state not in (*wire.ENDED, wire.WAITING)]
            for trial in [open_[0]] if order is None and open_ else shuffled(open_, order):
                on_trial(trial)
                patiently(lambda trial=trial: toys.train(trial))
            return patiently(toys.view).state in wire.ENDED

        until(is_over, lambda: str(toys.view()))
        found = [(each.trial, each.hparams, each.seed, each.best) for each in toys.trials()]
        toys.close()
        return found


def shuffled(trials: list[int], order: random.Random | None) -> list[int]:
    return [] if order is None else order.sample(trials, len(trials))
