"""One worker goes through three generations; its nccl communicator is aborted and formed anew in each."""

from __future__ import annotations

import contextlib

import torch

from everstep.engine.default_group import DefaultGroup
from everstep.engine.group import Group
from everstep.engine.world import World

group = DefaultGroup("127.0.0.1", contextlib.nullcontext, wants_nccl=True)
for generation in (1, 2, 3):
    group.follow(Group(World(generation=generation, rank=0, size=1), None, []))
    values = torch.full((4,), 2.0, device="cuda")
    group.allreduce([values]).wait()
    torch.cuda.synchronize()
    print(generation, values[0].item())
group.shutdown()
