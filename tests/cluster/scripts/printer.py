"""Print numbered lines, some of them without haste, until a file says that it is enough."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

is_enough, num_lines, pause_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
worker = os.environ["EVERSTEP_WORKER"]
print("WARNING: about to print", file=sys.stderr, flush=True)
for number in range(num_lines):
    print(f"{worker} line {number}", flush=True)
    time.sleep(pause_s)
while not is_enough.exists():
    time.sleep(0.02)
print("enough", end="", flush=True)
