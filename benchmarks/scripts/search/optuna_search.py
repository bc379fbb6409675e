"""Optuna with kept processes: `python optuna_search.py SLOTS`. Each line that comes in starts a search; its result goes
out as a line of JSON. Its best case: the processes have imported and loaded all, and share a journal in memory."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import optuna
import task
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def objective(trial: optuna.Trial) -> float:
    hparams = {
        "learning_rate": trial.suggest_float("learning_rate", task.LOWEST_RATE, task.HIGHEST_RATE, log=True),
        "momentum": trial.suggest_categorical("momentum", task.MOMENTA),
        "hidden": trial.suggest_int("hidden", task.NARROWEST, task.WIDEST),
    }
    own, loss = task.Task(hparams), 0.0
    for rung in task.RUNGS:
        own.train_to(rung)
        loss = own.validate()
        trial.report(loss, rung)
        if rung < task.RUNGS[-1] and trial.should_prune():
            raise optuna.TrialPruned
    return loss


def study(path: str, seed: int, *, is_new: bool = False) -> optuna.Study:
    given: dict[str, Any] = {
        "storage": JournalStorage(JournalFileBackend(path)),
        "sampler": optuna.samplers.RandomSampler(seed=seed),
        "pruner": optuna.pruners.SuccessiveHalvingPruner(min_resource=task.RUNGS[0], reduction_factor=task.DIVISOR),
    }
    return optuna.create_study(study_name="s", **given) if is_new else optuna.load_study(study_name="s", **given)


def serve(place: int, orders: Any, left: Any, done: Any) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    task.images("train"), task.images("test")
    done.put(place)
    while (path := orders.get()) is not None:
        own = study(path, place)
        while True:
            with left.get_lock():
                left.value -= 1
                if left.value < 0:
                    break
            own.optimize(objective, n_trials=1)
        done.put(place)


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    num_slots, context = int(sys.argv[1]), multiprocessing.get_context("spawn")
    orders, done, left = [context.Queue() for _ in range(num_slots)], context.Queue(), context.Value("i", 0)
    workers = [
        context.Process(target=serve, args=(place, orders[place], left, done), daemon=True)
        for place in range(num_slots)
    ]
    for each in workers:
        each.start()
    for _ in workers:
        done.get()
    print(json.dumps({"is_ready": True}), file=replies, flush=True)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        for number, _ in enumerate(sys.stdin):
            path, began = f"{folder}/{number}.log", time.monotonic()
            own = study(path, 0, is_new=True)
            left.value = task.NUM_TRIALS
            for each in orders:
                each.put(path)
            for _ in workers:
                done.get()
            took_s = time.monotonic() - began
            batches = sum(each.last_step or 0 for each in own.get_trials(deepcopy=False))
            found = {"s": took_s, "batches": batches, "num_trials": len(own.get_trials(deepcopy=False))}
            print(json.dumps(found), file=replies, flush=True)
    for each in orders:
        each.put(None)


if __name__ == "__main__":
    main()
