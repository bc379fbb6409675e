"""Ray Tune's ASHA as a kept process: `python ray_search.py SLOTS`. Each line that comes in starts a search; one line of
JSON goes out for it. Its best case: actors are kept and reused, nothing is logged or saved, a step is a whole rung."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"  # of the actors
os.environ |= {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_AIR_NEW_OUTPUT": "0", "RAY_DEDUP_LOGS": "0"}

import ray  # noqa: E402
import task  # noqa: E402
from ray import tune  # noqa: E402
from ray.tune.schedulers import ASHAScheduler  # noqa: E402


class Trial(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self._task = task.Task(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._task = task.Task(new_config)
        return True

    def step(self) -> dict[str, Any]:
        self._task.train_to(next(rung for rung in task.RUNGS if rung > self._task.num_batches))
        batches = self._task.num_batches
        return {"loss": self._task.validate(), "batches": batches, "done": batches >= task.RUNGS[-1]}


def search(folder: str, num_trials: int, seed: int) -> dict[str, Any]:
    space = {
        "learning_rate": tune.loguniform(task.LOWEST_RATE, task.HIGHEST_RATE),
        "momentum": tune.choice(list(task.MOMENTA)),
        "hidden": tune.randint(task.NARROWEST, task.WIDEST + 1),
    }
    asha = ASHAScheduler(
        time_attr="batches", max_t=task.RUNGS[-1], grace_period=task.RUNGS[0], reduction_factor=task.DIVISOR
    )
    began = time.monotonic()
    tuner = tune.Tuner(
        tune.with_resources(Trial, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=num_trials,
            scheduler=asha,
            reuse_actors=True,
            search_alg=tune.search.BasicVariantGenerator(random_state=seed),
        ),
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    )
    found = tuner.fit()
    took_s = time.monotonic() - began
    return {"s": took_s, "batches": sum(each.metrics["batches"] for each in found), "num_trials": len(found)}


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # it prints
    logging.disable(logging.WARNING)
    ray.init(num_cpus=int(sys.argv[1]), include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        search(folder, 2 * int(sys.argv[1]), 0)  # warm: workers have imported all they need
        print(json.dumps({"is_ready": True}), file=replies, flush=True)
        for seed, _ in enumerate(sys.stdin, 1):
            print(json.dumps(search(folder, task.NUM_TRIALS, seed)), file=replies, flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
