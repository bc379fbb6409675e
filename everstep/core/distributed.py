"""`core.DistributedContext`: this worker's rank among the others, and plain data exchanged between them.

Every answer is that of the time of the call: in a world that changes, `rank` and `size` are current. Data
travels as JSON, so a worker cannot make another one run anything. Imports no torch itself."""

from __future__ import annotations

import json
import socket
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NoReturn

from everstep import env
from everstep.errors import UsageError

if TYPE_CHECKING:
    from everstep.engine.step import Engine


class DistributedContext(ABC):
    """Like Determined's. The chief is rank 0; all workers must call `gather`, `allgather` and `broadcast`.

    They take plain data: None, booleans, numbers, strings, lists, dicts with string keys. A tuple arrives as a list."""

    def __init__(self, *, chief_ip: str | None = None) -> None:
        self._chief_ip = chief_ip

    # --- ranks and sizes ---

    @property
    @abstractmethod
    def rank(self) -> int: ...

    @property
    @abstractmethod
    def size(self) -> int: ...

    @property
    @abstractmethod
    def local_rank(self) -> int:
        """Among the workers of this node."""

    @property
    @abstractmethod
    def local_size(self) -> int: ...

    @abstractmethod
    def _gather(self, value: Any) -> list[Any]:
        """The values of all workers by rank, on all of them. `value` is plain data."""

    @property
    def cross_rank(self) -> int:
        """The node's number, if each node has as many workers as this one."""
        return self.rank // self.local_size

    @property
    def cross_size(self) -> int:
        """The number of nodes, if each has as many workers as this one."""
        return -(-self.size // self.local_size)

    @property
    def chief_ip(self) -> str:
        return self._chief_ip or env.value("MASTER_ADDR") or "127.0.0.1"

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    @property
    def is_local_chief(self) -> bool:
        return self.local_rank == 0

    def get_rank(self) -> int:
        return self.rank

    def get_size(self) -> int:
        return self.size

    def get_local_rank(self) -> int:
        return self.local_rank

    def get_num_agents(self) -> int:
        return self.cross_size

    def __repr__(self) -> str:
        return f"<DistributedContext: rank {self.rank} of {self.size}>"

    # --- plain data between workers ---

    def allgather(self, value: Any) -> list[Any]:
        """The values of all workers by rank, on all of them."""
        return self._gather(plain("allgather", value))

    def gather(self, value: Any) -> list[Any] | None:
        """The values of all workers by rank, on the chief; None on the others."""
        found = self._gather(plain("gather", value))
        return found if self.is_chief else None

    def broadcast(self, value: Any) -> Any:
        """The chief's value, on all workers; the others' values are ignored."""
        return self._gather(plain("broadcast", value) if self.is_chief else None)[0]

    def allgather_local(self, value: Any) -> list[Any]:
        """The values of this node's workers by local rank, on all of them. All workers of all nodes must call it."""
        return self._gather_local(plain("allgather_local", value))

    def gather_local(self, value: Any) -> list[Any] | None:
        """The values of this node's workers by local rank, on the first of them; None on the others."""
        found = self._gather_local(plain("gather_local", value))
        return found if self.is_local_chief else None

    def broadcast_local(self, value: Any) -> Any:
        """The value of this node's first worker, on all of its workers."""
        return self._gather_local(plain("broadcast_local", value) if self.is_local_chief else None)[0]

    def _gather_local(self, value: Any) -> list[Any]:
        here = f"{socket.gethostname()}/{env.node_rank()}"  # agents may share a machine, machines a number
        found = [each for each in self._gather([here, self.local_rank, value]) if each[0] == here]
        found.sort(key=lambda each: each[1])  # the node's first worker may have a higher rank than its second
        return [each[2] for each in found]

    # --- ways to create one ---

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None, chief_port: int | None = None) -> DistributedContext:
        """From torch.distributed's default group, which must exist. No port is needed: data travels through the
        group."""
        from everstep.core.torch_group import TorchContext

        return TorchContext(chief_ip=chief_ip)

    @classmethod
    def from_horovod(cls, *arguments: Any, **more: Any) -> NoReturn:
        _not_here("Horovod")

    @classmethod
    def from_deepspeed(cls, *arguments: Any, **more: Any) -> NoReturn:
        _not_here("DeepSpeed")

    @classmethod
    def from_tf_config(cls, *arguments: Any, **more: Any) -> NoReturn:
        _not_here("TensorFlow")


class EngineContext(DistributedContext):
    """The engine's current world: ranks and sizes change when workers come and go."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine

    @property
    def rank(self) -> int:
        return self._engine.visible_world.rank

    @property
    def size(self) -> int:
        return self._engine.visible_world.size

    @property
    def local_rank(self) -> int:
        return int(env.place_on_node())

    @property
    def local_size(self) -> int:
        return min(self.size, env.node_size() or 1)

    def _gather(self, value: Any) -> list[Any]:
        found = self._engine.gather(value)
        return [value] if found is None else found


def plain(call: str, value: Any) -> Any:
    """A copy that went through JSON, so a single worker gets the same as many; UsageError if the value is not plain
    data."""
    _check(call, value, "the value")
    return json.loads(json.dumps(value))


def _check(call: str, value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, each in value.items():
            if type(key) is not str:
                raise UsageError(
                    f"{call}(): {where} has the key {key!r}, which is not a string",
                    hint="use string keys: str(key)",
                    code="plain-data-key-not-a-string",
                )
            _check(call, each, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            _check(call, each, f"{where}[{number}]")
    elif not (value is None or type(value) in (bool, int, float, str)):
        raise UsageError(
            f"{call}(): {where} is of type {type(value).__qualname__}",
            hint="send plain data: tensor.tolist(), float(value)",
            code="not-plain-data",
        )


def _not_here(what: str) -> NoReturn:
    raise UsageError(
        f"{what} is not supported",
        hint="leave `distributed` out: everstep.pytorch.init() finds the workers itself, whether started by "
        "`everstep run --nproc-per-node 4 train.py`, torchrun or python",
        code="backend-not-supported",
    )
