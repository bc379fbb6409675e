"""What cannot follow a world that changes is refused by name, with the classic way as a hint."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import everstep
from everstep.engine import process_engine
from everstep.engine.buckets import trainable
from everstep.errors import UsageError


@pytest.fixture
def following() -> Iterator[None]:
    everstep.init_process_group()
    yield
    process_engine.close()


@pytest.mark.parametrize("backend", [None, "gloo"])
def test_a_subgroup_is_refused(following: None, backend: str | None) -> None:
    with pytest.raises(UsageError, match="subgroups do not follow the world") as caught:
        dist.new_group([0], backend=backend)
    assert "classic restart" in str(caught.value.hint)
    assert dist.get_world_size() == 1


def test_fully_shard_and_meshes_are_refused(following: None) -> None:
    for make in (lambda: fully_shard(nn.Linear(2, 2)), lambda: init_device_mesh("cpu", (1,))):
        with pytest.raises(UsageError, match="fully_shard, DeviceMesh") as caught:
            make()
        assert "torch.distributed.init_process_group" in str(caught.value.hint)


def test_a_model_that_is_sharded_already_is_refused() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)  # torch's own
    try:
        model = fully_shard(nn.Linear(2, 2), mesh=init_device_mesh("cpu", (2,)))
        with pytest.raises(UsageError, match="parameter weight is sharded"):
            trainable([model])
    finally:
        dist.destroy_process_group()
