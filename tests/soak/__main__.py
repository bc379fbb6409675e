"""python -m soak --faults 1000 --seed 1: one schedule after another, until so many faults were done."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from soak import box

parser = argparse.ArgumentParser(prog="soak", description=__doc__)
parser.add_argument("--faults", type=int, default=1000, help="how many at least")
parser.add_argument("--seed", type=int, default=1, help="of the first schedule; the next has the next")
parser.add_argument("--keep", type=Path, help="a folder for what is left of schedules that fail")
args = parser.parse_args()
if not box.can_enter():
    sys.exit("soak needs root, iproute2 and nftables on Linux")
box.enter()

from soak.run import soak  # noqa: E402 - torch is imported once, inside

with box.furnished():
    sys.exit(soak(args.faults, args.seed, args.keep))
