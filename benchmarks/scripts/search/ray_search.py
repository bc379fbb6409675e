"""Ray Tune's ASHA as a kept process: `python ray_search.py SLOTS`. Each line that comes in starts a search; one line of
JSON goes out for it.

Its best case: one actor per slot does all trials, and the time begins when all actors have imported and loaded
everything. Ray starts new processes for each search: neither that nor Tune's own start counts. Nothing is logged
or saved, a step is a whole rung, and files are in memory."""

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
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
sys.path.insert(0, str(HERE))
os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"  # of the actors
os.environ |= {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_AIR_NEW_OUTPUT": "0", "RAY_DEDUP_LOGS": "0"}

import ray  # noqa: E402
import task  # noqa: E402
from ray import tune  # noqa: E402
from ray.tune.schedulers import ASHAScheduler  # noqa: E402

READY_S = 120.0


def when_all_are_ready(folder: Path, num_slots: int) -> float:
    """Load all that a trial needs, and wait for the other actors."""
    task.images("train"), task.images("test")
    (folder / str(os.getpid())).touch()
    deadline = time.monotonic() + READY_S
    while len(os.listdir(folder)) < num_slots:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(os.listdir(folder))} of {num_slots} actors were ready within {READY_S:g} s")
        time.sleep(0.005)
    return time.monotonic()  # one clock for all processes of a machine


class Trial(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self._ready_at = when_all_are_ready(Path(config["ready"]), config["num_slots"])
        self._task = task.Task(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._task = task.Task(new_config)
        return True

    def step(self) -> dict[str, Any]:
        self._task.train_to(next(rung for rung in task.RUNGS if rung > self._task.num_batches))
        batches = self._task.num_batches
        loss, is_done = self._task.validate(), batches >= task.RUNGS[-1]
        return {"loss": loss, "batches": batches, "done": is_done, "ready_at": self._ready_at}


def search(folder: str, num_slots: int, num_trials: int, seed: int) -> dict[str, Any]:
    space = {
        "learning_rate": tune.loguniform(task.LOWEST_RATE, task.HIGHEST_RATE),
        "momentum": tune.choice(list(task.MOMENTA)),
        "hidden": tune.randint(task.NARROWEST, task.WIDEST + 1),
        "ready": tempfile.mkdtemp(dir=folder),
        "num_slots": num_slots,
    }
    asha = ASHAScheduler(
        time_attr="batches", max_t=task.RUNGS[-1], grace_period=task.RUNGS[0], reduction_factor=task.DIVISOR
    )
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
        # By default, a trial is saved at its end. If it cannot be, it fails, and its actor is not reused.
        run_config=tune.RunConfig(
            storage_path=folder, verbose=0, checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False)
        ),
    )
    found = tuner.fit()
    ended = time.monotonic()
    if found.num_errors:
        raise RuntimeError(f"{found.num_errors} of {len(found)} trials failed: {found.errors[0]}")
    return {
        "s": ended - max(each.metrics["ready_at"] for each in found),
        "batches": sum(each.metrics["batches"] for each in found),
        "num_trials": len(found),
        "num_actors": len({each.metrics["pid"] for each in found}),
    }


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # it prints
    logging.disable(logging.WARNING)
    num_slots = int(sys.argv[1])
    ray.init(num_cpus=num_slots, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        search(folder, num_slots, 2 * num_slots, 0)  # warm: Tune itself has imported all it needs
        print(json.dumps({"is_ready": True}), file=replies, flush=True)
        for seed, _ in enumerate(sys.stdin, 1):
            print(json.dumps(search(folder, num_slots, task.NUM_TRIALS, seed)), file=replies, flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
