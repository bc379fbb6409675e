"""How long a search of 32 small real trials takes: ours (adaptive_asha, order: exact), Ray Tune's ASHA with reused
actors, and Optuna's successive halving with kept processes (`make peers`), on the same slots and in one run.

Every trial trains the same network on the same images. Rungs are at 16, 64 and 256 batches. All three are warm: their
processes have done a search before. Rounds alternate; numbers are medians. `trial_start_s`: from the moment that a
trial gets its slot to its first batch. `same_winner`: whether 1, 2 and 3 slots found the same trial with the same loss.

The last line is JSON: ours_s, ray_s, optuna_s, ours_batches, ray_batches, optuna_batches, slots, trial_start_s,
same_winner, ours_per_ray (seconds per batch)."""

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

from benchmarks.last_line import last_line
from benchmarks.peers import peer_python
from benchmarks.scripts.search import task
from everstep import env, wire
from everstep.jobs import experiments
from everstep.jobs.coordinator_link import CoordinatorLink

SCRIPTS = Path(__file__).parent / "scripts" / "search"
DATA = Path(__file__).parents[1] / "examples" / "data" / task.NAME
READY_S = 300.0


class KeptPeer:
    """A peer's process. It is asked for a search by a line, and answers with one."""

    def __init__(self, python: str, script: str, num_slots: int) -> None:
        command = [python, str(SCRIPTS / script), str(num_slots)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._answer()

    def search(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        self._process.communicate()


class Pool:
    """A coordinator and a node with this many slots."""

    def __init__(self, link: CoordinatorLink, folder: Path) -> None:
        self._link, self._folder = link, folder
        self._num_searches = 0

    def search(self, seed: int) -> dict[str, Any]:
        self._num_searches += 1
        marks = self._folder / f"marks{self._num_searches}"
        marks.mkdir()
        prepared = experiments.prepare(None, SCRIPTS, content=_config(marks, self._folder, seed), includes=[DATA])
        began = time.monotonic()
        number = experiments.create(self._link, prepared).experiment
        view = experiments.wait(self._link, number, 0.05)
        took_s = time.monotonic() - began
        if view.state != wire.COMPLETED or view.best is None:
            raise RuntimeError(f"experiment {number} is {view.state}: {view.reason}")
        trials = experiments.all_trials(self._link, number)
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


@contextmanager
def open_pool(num_slots: int) -> Iterator[Pool]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="everstep-bench-")))
        token, ready = folder / "token", folder / "url"
        serve = ("serve", "--port", "0", "--store", folder / "store.db", "--token-file", token, "--ready-file", ready)
        stack.callback(_end, _start(folder, *serve))
        url = _await(ready)
        join = ("pool", "join", "--coordinator", url, "--token-file", token, "--slots", num_slots)
        stack.callback(_end, _start(folder, *join))
        link = stack.enter_context(CoordinatorLink(lambda: (url, env.read_token(token))))
        yield Pool(link, folder)


def _start(folder: Path, *command: object) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        given = [sys.executable, "-m", "everstep", *map(str, command)]
        return subprocess.Popen(given, stdout=log, stderr=log, cwd=folder, env={**os.environ, "EVERSTEP_HOME": folder})


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(60)


def _await(path: Path) -> str:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text().strip()):
            return text
        time.sleep(0.05)
    raise TimeoutError(f"{path} did not appear within {READY_S:g} s")


class Findings:
    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.rounds: dict[str, list[dict[str, Any]]] = {"ours": [], "ray": [], "optuna": []}
        self.winners: dict[int, Any] = {}

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
        }

    def _per_batch(self, who: str) -> float | None:
        rates = [each["s"] / each["batches"] for each in self.rounds[who]]
        return median(rates) if rates else None


def measure(findings: Findings, num_rounds: int, only: set[str]) -> None:
    with ExitStack() as stack:
        searches: dict[str, Any] = {}
        for name in ("ray", "optuna"):
            if name in only and (python := peer_python(name)) is not None:
                peer = KeptPeer(python, f"{name}_search.py", findings.num_slots)
                stack.callback(peer.close)
                searches[name] = lambda _number, peer=peer: peer.search()
        if "ours" in only:
            pool = stack.enter_context(open_pool(findings.num_slots))
            pool.search(0)  # warm
            searches["ours"] = pool.search
        for number in range(1, num_rounds + 1):
            for name, search in searches.items():
                found = search(number)
                findings.rounds[name].append(found)
                print(f"round {number}: {name}: {found}", flush=True)


def compare_winners(findings: Findings) -> None:
    for num_slots in (1, 2, 3):
        with open_pool(num_slots) as pool:
            findings.winners[num_slots] = pool.search(1)["winner"]
            print(f"{num_slots} slots: trial, loss, batches: {findings.winners[num_slots]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=["ours", "ray", "optuna", "winner"])
    args = parser.parse_args()
    findings = Findings(args.slots)
    with last_line(findings.report):
        measure(findings, args.rounds, set(args.only))
        if "winner" in args.only:
            compare_winners(findings)


if __name__ == "__main__":
    main()
