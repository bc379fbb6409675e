"""`core.DistributedContext`: who this worker is among the others, and plain data that they tell each other.

Everything is asked of a source when it is needed: in a world that changes, `rank` and `size` are those of now. What
travels is JSON, so that a worker cannot be made to run anything by what another one sends. Imports no torch itself."""

from __future__ import annotations

import json
import socket
from typing import Any, NoReturn, Protocol

from everstep import env
from everstep.errors import UsageError


class ContextSource(Protocol):
    """Where a context has its answers from."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def local_rank(self) -> int: ...

    @property
    def local_size(self) -> int: ...

    def gather(self, value: Any) -> list[Any]:
        """The values of all workers by rank, on all of them. `value` is what JSON can hold."""


class Alone:
    """The source of a process that has no others."""

    rank, size, local_rank, local_size = 0, 1, 0, 1

    def gather(self, value: Any) -> list[Any]:
        return [value]


class DistributedContext:
    """As Determined's. The chief is rank 0; `gather`, `allgather` and `broadcast` are called by all workers alike.

    They take what JSON can hold: None, truths, numbers, text, lists, dicts with text for keys. A tuple arrives as a
    list."""

    def __init__(self, source: ContextSource, *, chief_ip: str | None = None) -> None:
        self._source = source
        self._chief_ip = chief_ip

    # --- who this is ---

    @property
    def rank(self) -> int:
        return self._source.rank

    @property
    def size(self) -> int:
        return self._source.size

    @property
    def local_rank(self) -> int:
        """Among the workers of this node."""
        return self._source.local_rank

    @property
    def local_size(self) -> int:
        return self._source.local_size

    @property
    def cross_rank(self) -> int:
        """The node's number, where each node has as many workers as this one."""
        return self.rank // self.local_size

    @property
    def cross_size(self) -> int:
        """The number of nodes, where each has as many workers as this one."""
        return -(-self.size // self.local_size)

    @property
    def chief_ip(self) -> str:
        return self._chief_ip or env.chief_address()

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
        return self._source.gather(plain("allgather", value))

    def gather(self, value: Any) -> list[Any] | None:
        """The values of all workers by rank, on the chief; None on the others."""
        found = self._source.gather(plain("gather", value))
        return found if self.is_chief else None

    def broadcast(self, value: Any) -> Any:
        """The chief's value, on all workers; what the others give is not looked at."""
        return self._source.gather(plain("broadcast", value) if self.is_chief else None)[0]

    def allgather_local(self, value: Any) -> list[Any]:
        """The values of this node's workers by local rank, on all of them. Those of other nodes call it too."""
        return self._gather_local(plain("allgather_local", value))

    def gather_local(self, value: Any) -> list[Any] | None:
        """The values of this node's workers by local rank, on the first of them; None on the others."""
        found = self._gather_local(plain("gather_local", value))
        return found if self.is_local_chief else None

    def broadcast_local(self, value: Any) -> Any:
        """The value of this node's first worker, on all of its workers."""
        return self._gather_local(plain("broadcast_local", value) if self.is_local_chief else None)[0]

    def _gather_local(self, value: Any) -> list[Any]:
        here = _node()
        told = [each for each in self._source.gather([here, self.local_rank, value]) if each[0] == here]
        told.sort(key=lambda each: each[1])  # the node's first worker may have a higher rank than its second
        return [each[2] for each in told]

    # --- where it comes from ---

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None, chief_port: int | None = None) -> DistributedContext:
        """Of torch.distributed's default group, which must be there. `chief_ip` is kept, and no port is needed: what
        workers tell each other goes through the group."""
        from everstep.core.torch_group import TorchGroup

        return cls(TorchGroup(), chief_ip=chief_ip)

    @classmethod
    def from_horovod(cls, *arguments: Any, **more: Any) -> NoReturn:
        _not_here("Horovod")

    @classmethod
    def from_deepspeed(cls, *arguments: Any, **more: Any) -> NoReturn:
        _not_here("DeepSpeed")

    @classmethod
    def from_tf_config(cls, *arguments: Any, **more: Any) -> NoReturn:
        _not_here("TensorFlow")


def plain(call: str, value: Any) -> Any:
    """A copy as JSON gives it back, so that one worker alone gets what many would; UsageError for what JSON cannot
    hold."""
    _check(call, value, "the value")
    return json.loads(json.dumps(value))


def _check(call: str, value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, each in value.items():
            if type(key) is not str:
                _refuse(call, f"{where} has the key {key!r}, which is no text", "write the keys as text: str(key)")
            _check(call, each, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            _check(call, each, f"{where}[{number}]")
    elif not (value is None or type(value) in (bool, int, float, str)):
        _refuse(
            call, f"{where} is of type {type(value).__qualname__}", "send plain data: tensor.tolist(), float(value)"
        )


def _refuse(call: str, what: str, hint: str) -> NoReturn:
    raise UsageError(f"{call}(): {what}", hint=hint)


def _node() -> str:
    """This node among all: several agents may share a machine, several machines a number."""
    return f"{socket.gethostname()}/{env.node_rank()}"


def _not_here(what: str) -> NoReturn:
    raise UsageError(
        f"{what} is not supported",
        hint="leave `distributed` out: everstep.pytorch.init() finds the workers by itself, whether started by "
        "`everstep run --nproc-per-node 4 train.py`, torchrun or python",
    )
