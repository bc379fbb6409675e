"""Samples per second of everstep.DataLoader against torch's DataLoader with a DistributedSampler, on the same images.

python benchmarks/loader.py [--rounds 15]
last line JSON: {"ratio_0_workers": …, "ratio_2_workers": …, "regroup_stall_s": …}

Both read the same images for rank 0 of 2, in batches of 64, by 0 and by 2 loader processes; rounds alternate, and each
round's ratio is of two adjacent measurements. The stall is the time of the first batch after a regroup, when this
worker's micro-batches have changed and everything read ahead is useless."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import data

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.statistics_of_ratios import paired_ratio
from everstep.data.loader import DataLoader
from everstep.engine.plan import MicroBatch, plan_step
from everstep.engine.world import World

DATA = Path(__file__).parents[1] / "examples" / "data" / "fashion-mnist-8k.npz"
BATCH, MICRO_BATCHES = 64, 2


class Images(data.Dataset[Any]):
    """Like torchvision's datasets: one image at a time, converted to a float tensor and normalized."""

    def __init__(self) -> None:
        with np.load(DATA) as arrays:
            self.images, self.labels = arrays["train_images"], arrays["train_labels"]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.from_numpy(self.images[index]).unsqueeze(0).float().div_(255)
        return image.sub_(0.286).div_(0.353), int(self.labels[index])


class Plan:
    """The part of an engine that a loader uses: every step is committed at once."""

    def __init__(self, size: int, rank: int) -> None:
        self.step = 0
        self.regroup(1, size, rank)

    def regroup(self, generation: int, size: int, rank: int) -> None:
        self.world = World(generation=generation, rank=rank, size=size)
        self.dealt = (generation, 0)
        self.run = self.todo = plan_step(num_micro_batches=MICRO_BATCHES, size=size).todo[rank]

    def next_micro_batch(self) -> MicroBatch:
        return MicroBatch(step=self.step, index=self.todo[0])

    def forget_plan(self) -> None: ...

    def enter_loop(self) -> None: ...

    def leave_loop(self) -> None: ...


def ours(num_workers: int, plan: Plan) -> tuple[DataLoader, Iterator[Any]]:
    loader = DataLoader(IMAGES, batch_size=BATCH, shuffle=True, num_workers=num_workers)
    loader.bind(plan, MICRO_BATCHES)  # type: ignore[arg-type]

    def batches() -> Iterator[Any]:
        for batch in loader:
            loader.take_offered()
            yield batch
            loader.position.advance()
            plan.step += 1

    return loader, batches()


def theirs(num_workers: int) -> Iterator[Any]:
    sampler: Any = data.DistributedSampler(IMAGES, num_replicas=2, rank=0)
    return iter(data.DataLoader(IMAGES, batch_size=BATCH, sampler=sampler, num_workers=num_workers))


def rate(batches: Iterator[Any]) -> float:
    """Samples per second, from the first batch on: starting loader processes is not reading."""
    next(batches)
    started = time.perf_counter()
    samples = sum(len(labels) for _, labels in batches)
    return samples / (time.perf_counter() - started)


def stall(num_workers: int) -> tuple[float, float]:
    """The usual wait for a batch that was read ahead, and the wait for the first one of a new plan."""
    plan = Plan(2, 0)
    _, batches = ours(num_workers, plan)
    usual = []
    for _ in range(8):
        time.sleep(0.02)  # training: meanwhile batches are read ahead
        started = time.perf_counter()
        next(batches)
        usual.append(time.perf_counter() - started)
    plan.regroup(2, 2, 1)
    started = time.perf_counter()
    next(batches)
    return statistics.median(usual), time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    told = {}
    for num_workers in (0, 2):
        torchs, mine = [], []
        for number in range(args.rounds):
            for is_mine in (True, False) if number % 2 else (False, True):
                batches = ours(num_workers, Plan(2, 0))[1] if is_mine else theirs(num_workers)
                (mine if is_mine else torchs).append(rate(batches))
        ratio = paired_ratio(mine, torchs)
        print(
            f"{num_workers} loader processes: torch {statistics.median(torchs):7.0f} samples/s, "
            f"ours {statistics.median(mine):7.0f}, ratio {ratio}"
        )
        told[f"ratio_{num_workers}_workers"] = round(ratio.median, 3)
    stalls = [stall(2) for _ in range(5)]
    usual, after = (statistics.median(each) for each in zip(*stalls, strict=True))
    print(f"the wait for a batch: {usual * 1e3:.1f} ms, after a regroup {after * 1e3:.1f} ms (2 loader processes)")
    print(json.dumps({**told, "regroup_stall_s": round(after, 4)}))


if __name__ == "__main__":
    IMAGES = Images()
    main()
