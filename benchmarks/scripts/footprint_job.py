"""The job of benchmarks/footprint.py: trains a tiny model and, once a world of --workers has taken some steps
together, reports the most that this process has held."""

from __future__ import annotations

import argparse
import os
import threading
import time
from pathlib import Path

import torch
from torch import nn

import everstep
from everstep.events import emit

STEPS, LOOK_S = 20, 0.002


class Footprint:
    """The most held so far, by resource. Memory: what would become free without this process, because the workers of a
    node share the rest."""

    def __init__(self) -> None:
        self.most = {"files": 0, "threads": 0, "memory_bytes": 0}
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            threads = len(os.listdir("/proc/self/task")) - 1  # without this thread
            self._note(files=len(os.listdir("/proc/self/fd")), threads=threads)
            time.sleep(LOOK_S)

    def _note(self, **held: int) -> None:
        self.most |= {name: max(self.most[name], number) for name, number in held.items()}

    def measure_memory(self) -> None:
        rows = Path("/proc/self/smaps_rollup").read_text().splitlines()
        self._note(memory_bytes=sum(int(row.split()[1]) << 10 for row in rows if row.startswith("Private")))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    footprint, model = Footprint(), nn.Linear(8, 8)
    trainer = everstep.ElasticTrainer(model, micro_batches=args.workers)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=1e-3))
    num_together = 0
    for micro_batch in trainer.micro_batches(steps=1_000_000):
        before = trainer.num_steps
        with trainer.step():
            time.sleep(0.01)
            model(torch.full((4, 8), float(micro_batch.index))).square().mean().backward()
            optimizer.step()
        if trainer.num_steps > before and trainer.world_size == args.workers:
            num_together += 1
            if num_together == STEPS:
                footprint.measure_memory()
                emit("footprint", size=args.workers, **footprint.most)


if __name__ == "__main__":
    main()
