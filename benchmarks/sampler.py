"""What a shuffled epoch costs before its first index and for each further one: Everstep, torch and DLRover.

Each row is a fresh process that is the only worker, so it draws every index of the epoch. "first" is from making the
sampler to its first index, "resumed" the same from a state half-way through the epoch; "per index" is the whole epoch
with its set-up, divided by its size (of the largest, the first 10^8 indices); "peak" is how far the process's resident
memory has risen by the end. DLRover's algorithm is reimplemented here, step by step.

python benchmarks/sampler.py [--largest 9]      last line JSON; its times per index are our worst and torch's best"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DistributedSampler

sys.path.insert(0, str(Path(__file__).parents[1]))
from everstep.data.sampler import ElasticDistributedSampler

MOST_DRAWN = 10**8
LARGEST = {"everstep": 9, "torch": 8, "dlrover": 8}  # exponents of ten: the others write 40 bytes per sample down
MEANINGS = {"everstep": "ElasticDistributedSampler", "torch": "torch's DistributedSampler", "dlrover": "DLRover's way"}


class ListedRest(DistributedSampler[int]):
    """DLRover's algorithm: shuffle a list of the whole epoch, cut off the finished part, pad, and take every n-th."""

    done = 0

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.set_epoch(state["epoch"])
        self.done = state["completed_num"]
        self.num_samples = math.ceil((len(self.dataset) - self.done) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.dataset), generator=generator).tolist()[self.done :]
        order += order[: self.total_size - len(order)]
        return iter(order[self.rank : self.total_size : self.num_replicas])


KINDS = {"everstep": ElasticDistributedSampler, "torch": DistributedSampler, "dlrover": ListedRest}


def measure(kind: str, size: int, is_resumed: bool) -> dict[str, Any]:
    dataset = range(size)
    resident_kb = _resident_kb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
    started = time.perf_counter()
    sampler: Any = KINDS[kind](dataset, num_replicas=1, rank=0)  # type: ignore[arg-type]
    if is_resumed:
        sampler.load_state_dict({"epoch": 0, "completed_num": size // 2})
    indices = iter(sampler)
    next(indices)
    first_s = time.perf_counter() - started
    num_drawn = min(len(sampler), MOST_DRAWN)
    deque(itertools.islice(indices, num_drawn - 1), maxlen=0)
    epoch_s = time.perf_counter() - started
    peak_mb = (_resident_kb("VmHWM") - resident_kb) * 1024 / 1e6
    return {"first_s": first_s, "per_index_ns": epoch_s / num_drawn * 1e9, "peak_mb": peak_mb}


def _resident_kb(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{name}:"))


def row(kind: str, exponent: int, is_resumed: bool) -> dict[str, Any]:
    """The best of several fresh processes, since other load only adds time; the slowest rows run once."""
    command = [sys.executable, __file__, "--row", kind, str(exponent), "resumed" if is_resumed else "whole"]
    answers = [
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        for _ in range(5 if exponent < 8 else 3 if kind == "everstep" else 1)
    ]
    return {name: min(answer[name] for answer in answers) for name in answers[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--largest", type=int, default=9, help="the largest size, as an exponent of ten")
    parser.add_argument("--row", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        kind, exponent, which = args.row
        print(json.dumps(measure(kind, 10 ** int(exponent), which == "resumed")))
        return
    rows = {}
    print(f"{'':28s} {'samples':>8s} {'first':>11s} {'resumed':>11s} {'per index':>10s} {'peak':>11s}")
    for exponent in range(6, args.largest + 1):
        for kind, largest in LARGEST.items():
            if exponent > largest:
                continue
            whole = row(kind, exponent, is_resumed=False)
            resumed = row(kind, exponent, is_resumed=True) if kind != "torch" else None  # it begins at 0 always
            rows[kind, exponent] = (whole, resumed)
            first = f"{whole['first_s'] * 1e3:8.1f} ms"
            again = f"{resumed['first_s'] * 1e3:8.1f} ms" if resumed else "-"
            costs = f"{whole['per_index_ns']:7.0f} ns {whole['peak_mb']:8.1f} MB"
            print(f"{MEANINGS[kind]:28s} {f'10^{exponent}':>8s} {first:>11s} {again:>11s} {costs}", flush=True)
    print(json.dumps(summary(rows)))


def summary(rows: dict[tuple[str, int], tuple[dict[str, Any], dict[str, Any] | None]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for (kind, exponent), (whole, resumed) in rows.items():
        if (kind, exponent) == ("everstep", 9) and resumed:
            found["first_index_s_1e9"] = round(whole["first_s"], 6)
            found["peak_mb_1e9"] = round(whole["peak_mb"], 3)
            found["resumed_first_index_s_1e9"] = round(resumed["first_s"], 6)
            found["resumed_peak_mb_1e9"] = round(resumed["peak_mb"], 3)
        if (kind, exponent) == ("torch", 8):
            found["torch_first_index_s_1e8"] = round(whole["first_s"], 3)
    found["per_index_ns"] = round(
        max(whole["per_index_ns"] for (kind, _), (whole, _) in rows.items() if kind == "everstep"), 1
    )
    found["torch_per_index_ns"] = round(
        min(whole["per_index_ns"] for (kind, _), (whole, _) in rows.items() if kind == "torch"), 1
    )
    return found


if __name__ == "__main__":
    main()
