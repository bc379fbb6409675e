"""A script that knows nothing of Everstep: prints a loss for each batch, until it has printed 9.

`--gate FOLDER`: it waits after batch 3 for the file `on` there, and never ends by itself."""

import argparse
import itertools
import math
import os
import pathlib
import time

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--hidden", type=int)
parser.add_argument("--gate", type=pathlib.Path)
args = parser.parse_args()

if args.gate:
    (args.gate / f"pid-{os.getpid()}").touch()
for batch in itertools.count(1) if args.gate else range(1, 10):
    while args.gate and batch > 3 and not (args.gate / "on").exists():
        time.sleep(0.01)
    loss = abs(math.log10(args.lr) + 1) + 1 / args.hidden + 1 / batch
    print(f"batch {batch}: validation_loss={loss:.6f}", flush=True)
    time.sleep(0.01)
