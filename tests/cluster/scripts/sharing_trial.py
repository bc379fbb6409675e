"""A trial that loads data once per node, of --mb megabytes, and holds until the file `go` is there.

It leaves `ready-PID` before it loads and `loaded-PID` after, and waits for `begin` in between; each load leaves a line
in `loads`. `--first-waits`: the first that loads stays in it until it is killed."""

from __future__ import annotations

import argparse
import os
import random
import time
from pathlib import Path

import numpy

import everstep

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path)
parser.add_argument("--lr", type=float)
parser.add_argument("--mb", type=int, default=1)
parser.add_argument("--first-waits", action="store_true")
options = parser.parse_args()


def wait_for(name: str) -> None:
    while not (options.folder / name).exists():
        time.sleep(0.01)


def load(num_numbers: int) -> dict[str, numpy.ndarray]:
    with open(options.folder / "loads", "a") as file:
        file.write(f"{os.getpid()}\n")
    if options.first_waits and len((options.folder / "loads").read_text().splitlines()) == 1:
        wait_for("never")
    return {"numbers": numpy.random.random(num_numbers), "seed": random.random()}


numpy.zeros(8).sum()
everstep.once_per_node(numpy.zeros, 8)  # what the first call needs is there before memory is measured
(options.folder / f"ready-{os.getpid()}").touch()
wait_for("begin")
data = everstep.once_per_node(load, options.mb * 125_000)
total = float(data["numbers"].sum())
done = options.folder / f".{os.getpid()}"
done.write_text(f"{total} {data['seed']}")
done.rename(options.folder / f"loaded-{os.getpid()}")
wait_for("go")
everstep.report({"loss": options.lr}, step=8)
