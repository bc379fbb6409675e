"""A trial that counts on from what it loads, saves its count, and holds until the file `go-N` of its number is there.

It counts by --count. `--in-memory`: nothing is written as long as all goes well."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import everstep
from everstep.events import emit

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path)
parser.add_argument("--lr", type=float)
parser.add_argument("--count", type=int, default=3)
parser.add_argument("--kb", type=int, default=100)
parser.add_argument("--in-memory", action="store_true")
options = parser.parse_args()

number = json.loads(os.environ["EVERSTEP_TRIAL"])["trial"]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
every = {"every": 1000, "memory_every": 1} if options.in_memory else {}
with everstep.Checkpointer(options.folder / f"states-{number}", **every) as checkpointer:
    found = checkpointer.load()
    step = 0
    if found is not None:
        step = found["step"]
        assert found["trial"] == number and set(found["weights"].tolist()) == {float(number)}, found
    for _ in range(options.count):
        step += 1
        weights = torch.full((options.kb * 250,), float(number))
        checkpointer.save(step, {"step": step, "trial": number, "weights": weights})
    if not options.in_memory:
        checkpointer.wait()
    emit("saved", step=step, trial=number)
    while not (options.folder / f"go-{number}").exists():
        time.sleep(0.01)
everstep.report({"loss": options.lr}, step=8)
