"""One worker of an FSDP2 world: trains a step, saves, zeroes its weights, loads, and gives them to torch's own door.

Usage: checkpoint_fsdp.py FOLDER STORE."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import everstep

torch.set_num_threads(1)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=size)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(2, 5)).sum().backward()
optimizer.step()
whole = StateDictOptions(full_state_dict=True)
before = get_model_state_dict(model, options=whole)
with everstep.Checkpointer(sys.argv[1]) as checkpointer:
    checkpointer.save(1, {"model": model, "optimizer": optimizer}, wait=True)
    dist.barrier()
    saved = checkpointer.load()
with torch.no_grad():
    for parameter in model.parameters():
        parameter.zero_()
set_model_state_dict(model, saved["model"], options=whole)
after = get_model_state_dict(model, options=whole)
print(all(torch.equal(after[name], before[name]) for name in before), flush=True)
dist.destroy_process_group()
