"""Save as fast as possible and tell what is durable: checkpoint_loop.py FOLDER STEPS [ELEMENTS]."""

from __future__ import annotations

import logging
import sys

import torch

import everstep

logging.basicConfig(level=logging.WARNING)
torch.set_num_threads(1)
folder, num_steps = sys.argv[1], int(sys.argv[2])
size = int(sys.argv[3]) if len(sys.argv) > 3 else 100_000
checkpointer = everstep.Checkpointer(folder)
saved = checkpointer.load()
first = saved["step"] + 1 if saved is not None else 1
for step in range(first, first + num_steps):
    state = {"step": step, "w": torch.full((size,), step, dtype=torch.int32)}
    checkpointer.save(step, state)
    if checkpointer._pending is not None and checkpointer._pending.exception() is None:
        print("durable", step, flush=True)
print("trained to", first + num_steps - 1, flush=True)
