"""A script that knows nothing of Everstep: prints a loss for each batch, until it is ended or has printed 9."""

import argparse
import math
import time

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--hidden", type=int)
args = parser.parse_args()

for batch in range(1, 10):
    loss = abs(math.log10(args.lr) + 1) + 1 / args.hidden + 1 / batch
    print(f"batch {batch}: validation_loss={loss:.6f}", flush=True)
    time.sleep(0.01)
