"""One worker of a plain torch.distributed world that saves and loads: checkpoint_world.py FOLDER STORE MODE STEPS."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist

import everstep

torch.set_num_threads(1)
folder, store, mode, num_steps = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)


def state(step: int) -> dict[str, Any]:
    tensors: dict[str, Any] = {f"layer{i}": torch.full((100 + i, 7), float(step + i)) for i in range(10)}
    if mode == "sharded":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (size,))
        whole = torch.arange(7 * 5, dtype=torch.float64).reshape(7, 5) + step
        tensors["rows"] = distribute_tensor(whole, mesh, [Shard(0)])
        tensors["columns"] = distribute_tensor(whole.to(torch.complex128), mesh, [Shard(1)])
        tensors["same"] = distribute_tensor(whole, mesh, [Replicate()])
    return {"tensors": tensors, "step": step}


with everstep.Checkpointer(folder) as checkpointer:
    before = checkpointer.load()
    first = before["step"] if before is not None else 0
    for step in range(first + 1, first + num_steps + 1):
        if mode != "first only" or rank == 0:
            checkpointer.save(step, state(step))
        dist.barrier()
    checkpointer.wait()
    dist.barrier()
    after = checkpointer.load()
    assert after is not None
    total = sum(float(each.abs().sum()) for each in after["tensors"].values())
    files = [] if checkpointer.loaded is None else [each.name.split("/")[1] for each in checkpointer.loaded.files]
    print(json.dumps({"rank": rank, "before": first, "step": after["step"], "sum": total, "files": files}), flush=True)
    dist.barrier()
dist.destroy_process_group()
