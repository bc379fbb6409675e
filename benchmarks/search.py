"""How long a search of 32 small real trials takes: ours (adaptive_asha, order: exact), Ray Tune's ASHA with reused
actors, and Optuna's successive halving with kept processes (`make peers`), on the same slots and in one run.

Every trial trains the same network on the same images. Rungs are at 16, 64 and 256 batches. All three are warm: their
processes have done a search before. Rounds alternate; numbers are medians. `trial_start_s`: from the moment that a
trial gets its slot to its first batch. `same_winner`: whether 1, 2 and 3 slots found the same trial with the same loss.

`--only preview`: the whole command `everstep e preview` for 10,000 trials.

The last line is JSON: ours_s, ray_s, optuna_s, ours_batches, ray_batches, optuna_batches, slots, trial_start_s,
same_winner, ours_per_ray (seconds per batch), preview_10000_s."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.kept_peer import KeptPeer
from benchmarks.last_line import last_line
from benchmarks.live_pool import READY_S, LivePool, open_pool
from benchmarks.peers import peer_python
from benchmarks.scripts.search import task
from everstep import wire
from everstep.jobs import experiments

SCRIPTS = Path(__file__).parent / "scripts" / "search"
DATA = Path(__file__).parents[1] / "examples" / "data" / task.NAME
SEARCH_S = 300.0  # a peer that takes longer hangs


class Searches:
    """On a pool, one after the other."""

    def __init__(self, pool: LivePool) -> None:
        self._pool = pool
        self._num_searches = 0

    def search(self, seed: int) -> dict[str, Any]:
        self._num_searches += 1
        marks = self._pool.folder / f"marks{self._num_searches}"
        marks.mkdir()
        began = time.monotonic()
        number = self._pool.create(SCRIPTS, _config(marks, self._pool.folder, seed))
        view = self._pool.wait(number)
        took_s = time.monotonic() - began
        assert view.best is not None
        trials = experiments.all_trials(self._pool.link, number)
        winner = (view.best.trial, view.best.metric, view.best.length)
        return {"s": took_s, "batches": sum(each.length for each in trials), "winner": winner,
                "start_s": median(_starts(trials, marks))}  # fmt: skip


def _starts(trials: list[wire.TrialView], marks: Path) -> list[float]:
    return [
        float((marks / str(each.trial_id)).read_text()) - each.started_at
        for each in trials
        if each.started_at is not None
    ]


def _config(marks: Path, folder: Path, seed: int) -> dict[str, Any]:
    return {
        "name": "search benchmark",
        "entrypoint": "python3 trial.py",
        "hyperparameters": {
            "global_batch_size": task.BATCH_SIZE,
            "learning_rate": {"log": [task.LOWEST_RATE, task.HIGHEST_RATE]},
            "momentum": {"choice": list(task.MOMENTA)},
            "hidden": {"int": [task.NARROWEST, task.WIDEST]},
            "marks": str(marks),
        },
        "searcher": {
            "name": "adaptive_asha",
            "mode": "aggressive",  # one bracket, as the peers have
            "metric": "loss",
            "max_trials": task.NUM_TRIALS,
            "max_length": {"batches": task.RUNGS[-1]},
            "max_rungs": len(task.RUNGS),
            "divisor": task.DIVISOR,
            "max_concurrent_trials": 0,
        },
        "reproducibility": {"experiment_seed": seed},
        "checkpoint_storage": {"type": "shared_fs", "host_path": str(folder / "checkpoints")},
    }


class Findings:
    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.rounds: dict[str, list[dict[str, Any]]] = {"ours": [], "ray": [], "optuna": []}
        self.winners: dict[int, Any] = {}
        self.previews_s: list[float] = []

    def median(self, who: str, key: str) -> float | None:
        found = [each[key] for each in self.rounds[who]]
        return round(median(found), 4) if found else None

    def report(self) -> dict[str, Any]:
        whole = {f"{who}_{key}": self.median(who, key) for who in self.rounds for key in ("s", "batches")}
        ours, ray = self._per_batch("ours"), self._per_batch("ray")
        return {
            **whole,
            "slots": self.num_slots,
            "trial_start_s": self.median("ours", "start_s"),
            "same_winner": len(set(self.winners.values())) == 1 if len(self.winners) > 1 else None,
            "ours_per_ray": round(ours / ray, 3) if ours and ray else None,
            "preview_10000_s": round(median(self.previews_s), 3) if self.previews_s else None,
        }

    def _per_batch(self, who: str) -> float | None:
        rates = [each["s"] / each["batches"] for each in self.rounds[who]]
        return median(rates) if rates else None


def measure(findings: Findings, num_rounds: int, only: set[str]) -> None:
    with ExitStack() as stack:
        searches: dict[str, Any] = {}
        for name in ("ray", "optuna"):
            if name in only and (python := peer_python(name)) is not None:
                command = [python, SCRIPTS / f"{name}_search.py", str(findings.num_slots)]
                peer = KeptPeer(name, command, READY_S, SEARCH_S)
                stack.callback(peer.close)
                searches[name] = lambda _number, peer=peer: peer.search()
        if "ours" in only:
            ours = Searches(stack.enter_context(open_pool(findings.num_slots)))
            ours.search(0)  # warm
            searches["ours"] = ours.search
        for number in range(1, num_rounds + 1):
            for name, search in searches.items():
                found = search(number)
                findings.rounds[name].append(found)
                print(f"round {number}: {name}: {found}", flush=True)


def compare_winners(findings: Findings) -> None:
    for num_slots in (1, 2, 3):
        with open_pool(num_slots) as pool:
            findings.winners[num_slots] = Searches(pool).search(1)["winner"]
            print(f"{num_slots} slots: trial, loss, batches: {findings.winners[num_slots]}", flush=True)


def measure_previews(findings: Findings, num_rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as folder:
        config = _config(Path(folder), Path(folder), 1)
        path = Path(folder) / "search.json"
        path.write_text(json.dumps(config))
        changes = ("--config", "searcher.max_trials=10000", "--batch-s", "0.1", "--slots", "16")
        command = [sys.executable, "-m", "everstep", "e", "preview", str(path), *changes]
        for number in range(1, num_rounds + 1):
            began = time.monotonic()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=READY_S)
            findings.previews_s.append(time.monotonic() - began)
            print(f"round {number}: preview: {findings.previews_s[-1]:.3f} s", flush=True)


@contextmanager
def unpacked_images() -> Iterator[None]:
    """As fast to load as they can be: each of our trials is a new process, while peers load them once."""
    with tempfile.TemporaryDirectory(prefix="everstep-bench-images-") as folder:
        task.unpack(DATA, Path(folder))
        os.environ[task.FOLDER] = folder
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=["ours", "ray", "optuna", "winner", "preview"])
    args = parser.parse_args()
    findings = Findings(args.slots)
    with last_line(findings.report):
        if "preview" in args.only:
            measure_previews(findings, args.rounds)
        if set(args.only) - {"preview"}:
            with unpacked_images():
                measure(findings, args.rounds, set(args.only))
                if "winner" in args.only:
                    compare_winners(findings)


if __name__ == "__main__":
    main()
