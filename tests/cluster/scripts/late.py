"""Rank 0 reaches collectives long after the others: later than a group may take to form. Fails once, and torchrun
restarts it."""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist

import everstep
from everstep import env
from everstep.engine import group

group.FORM_S = 3.0  # enough on a busy machine once both are there

everstep.init_process_group()
for _ in range(2):  # the first forms a group
    if dist.get_rank() == 0:
        threading.Event().wait(2 * group.FORM_S)
    count = torch.ones(1)
    dist.all_reduce(count)
    print(f"attempt {env.num_restarts()} rank {dist.get_rank()} counts {int(count)}", flush=True)
if env.num_restarts() == 0:
    raise SystemExit("torchrun starts it again")
