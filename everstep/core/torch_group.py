"""A DistributedContext of torch.distributed's default group: JSON as bytes, nothing pickled."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist

from everstep import env
from everstep.core.distributed import DistributedContext
from everstep.errors import UsageError


class TorchContext(DistributedContext):
    def __init__(self, *, chief_ip: str | None = None) -> None:
        super().__init__(chief_ip=chief_ip)
        if not (dist.is_available() and dist.is_initialized()):
            raise UsageError(
                "from_torch_distributed() before torch.distributed has a process group",
                hint='call torch.distributed.init_process_group("gloo") first; or leave `distributed` out of '
                "everstep.pytorch.init(), which forms the group itself",
                code="no-process-group",
            )

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def size(self) -> int:
        return dist.get_world_size()

    @property
    def local_rank(self) -> int:
        """Without a launcher that says otherwise, all workers count as being on this node."""
        return self.rank if env.node_size() is None else int(env.place_on_node())

    @property
    def local_size(self) -> int:
        return env.node_size() or self.size

    def _gather(self, value: Any) -> list[Any]:
        data = json.dumps(value).encode()
        sizes = [int(each) for each in self._all_gather(torch.tensor([len(data)]))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)  # all tensors of a gather have the same size
        padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        found = self._all_gather(padded)
        return [json.loads(bytes(each[:size].tolist())) for each, size in zip(found, sizes, strict=True)]

    def _all_gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        mine = mine.to("cuda" if dist.get_backend() == "nccl" else "cpu")
        found = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(found, mine)
        return [each.cpu() for each in found]
