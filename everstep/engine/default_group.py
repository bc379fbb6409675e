"""torch.distributed's default group, following the world.

A process group of "all workers of this generation": after a regroup, the same object has another rank
and size, and its collectives run over the new generation. The real group underneath is formed at its first use, so
that scripts which never call a collective pay nothing. A loss in a collective is PeerLost.

With backend nccl, collectives on CUDA tensors run over nccl, which is aborted when the generation closes and formed
again in the next (experimental: exercised with one worker only). Gradients never come this way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroupGloo

from everstep import env
from everstep.engine.group import WAIT_S, Group, GroupForming, generation_store, gloo_words
from everstep.engine.world import ALONE, World
from everstep.errors import PeerLost, UsageError

BACKEND = "everstep"

Waiting = Callable[[], AbstractContextManager[None]]
VERDICT_S = 2.0  # after a failed collective, the coordinator may take this long to close the generation …
LOSS_S = 60.0  # … or this long if a connection has ended: reports may be slow on a busy machine


class DefaultGroup(dist.ProcessGroup):
    """Registered with torch.distributed once; `follow` gives it a new world."""

    def __init__(self, address: str, waiting: Waiting, *, wants_nccl: bool = False) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]  # torch's stub knows only the other constructor
        self._address = address
        self._waiting = waiting
        self._lock = threading.Lock()
        self._world: World = ALONE
        self._group: Group | None = None
        self._attempt = GroupForming()
        self._solo: ProcessGroupGloo | None = None
        self._is_closed = threading.Event()  # the present generation
        self._wants_nccl = wants_nccl
        self._nccl: Any = None

    def follow(self, group: Group) -> None:
        with self._lock:
            old, self._group, self._world, self._attempt = self._group, None, group.world, GroupForming()
            self._is_closed.clear()
            nccl, self._nccl = self._nccl, None
        if group.is_broken:  # closed meanwhile
            self.break_()
        if old is not None:
            old.close()
        if nccl is not None:
            nccl.abort()
        ranks = dist.distributed_c10d._world.pg_group_ranks
        if self in ranks:
            ranks[self] = {rank: rank for rank in range(self._world.size)}

    def generation_closed(self, generation: int) -> None:
        if self._world.generation <= generation:
            self.break_()

    def break_(self) -> None:
        """The generation closed: a thread that waits in a collective gets an error. Safe from any thread."""
        self._is_closed.set()
        self._attempt.give_up()
        if (group := self._group) is not None:
            group.break_()
        if (nccl := self._nccl) is not None:
            nccl.abort()

    def explain(self, error: RuntimeError) -> Exception:
        """PeerLost if the generation is closed, now or within a moment; else the error itself: the call was wrong."""
        # Not evidence of a loss, only a reason for patience.
        tells_of_a_connection = any(word in str(error) for word in ("onnection", "roken pipe"))
        is_loss = env.coordinator_url() is not None and tells_of_a_connection
        if not self._is_closed.wait(LOSS_S if is_loss else VERDICT_S):
            return error
        return PeerLost(
            f"generation {self._world.generation} lost a peer: {gloo_words(error)}", code="collective-lost-peer"
        )

    def wait_for(self, work: dist.Work, timeout: timedelta) -> bool:
        group = self._group
        with self._waiting():
            return group.unless_broken(lambda: work.wait(timeout)) if group is not None else work.wait(timeout)

    def rank(self) -> int:
        return self._world.rank

    def size(self) -> int:
        return self._world.size

    @property
    def group_name(self) -> Any:
        """Asked for by DeviceMesh, and by what is built on it."""
        raise UsageError(
            "fully_shard, DeviceMesh and tensor parallelism cannot follow the world when workers come and go",
            hint="use torch.distributed.init_process_group instead of everstep's: `everstep run` then restarts all "
            "workers together after a loss, and everstep.Checkpointer saves sharded states",
            code="sharding-cannot-follow",
        )

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        return BACKEND

    def shutdown(self) -> None:
        if self._group is not None:
            self._group.close()
        if self._nccl is not None:
            self._nccl.abort()
        self._group = self._nccl = None

    def abort(self) -> None:
        self.break_()

    def _inner(self, arguments: tuple[Any, ...]) -> Any:
        """The group that runs a collective with these arguments."""
        if self._wants_nccl and _is_on_cuda(arguments):
            with self._lock:
                self._nccl = self._nccl or _form_nccl(self._world)
                return self._nccl
        return self._inner_gloo()

    def _inner_gloo(self) -> ProcessGroupGloo:
        with self._lock:
            if self._world.size == 1:
                self._solo = self._solo or ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=60))
                return self._solo
            if self._group is None:
                try:
                    self._group = Group.form_in_generation(
                        self._world, self._address, "user", self._attempt, has_neighbors=False
                    )
                except Exception as error:
                    raise PeerLost(
                        f"generation {self._world.generation} is broken: {gloo_words(error)}", code="collective-broken"
                    ) from error
                if self._attempt.is_given_up:  # before `break_` could see the group
                    self._group.break_()
            assert self._group.gloo is not None
            return self._group.gloo


def _form_nccl(world: World) -> Any:
    """One generation's communicator; once aborted, it cannot be used again."""
    from torch._C._distributed_c10d import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=WAIT_S)
    return ProcessGroupNCCL(generation_store(world, "nccl"), world.rank, world.size, options)


def _is_on_cuda(arguments: Any) -> bool:
    if isinstance(arguments, Tensor):
        return arguments.is_cuda
    return isinstance(arguments, list | tuple) and any(_is_on_cuda(each) for each in arguments)


class _Following(dist.Work):
    """A work whose failure may be the loss of a peer."""

    def __init__(self, work: dist.Work, group: DefaultGroup) -> None:
        super().__init__()
        self._work = work
        self._group = group

    def wait(self, timeout: timedelta = timedelta(seconds=WAIT_S)) -> bool:
        try:
            return self._group.wait_for(
                self._work, timeout if timeout.total_seconds() > 0 else timedelta(seconds=WAIT_S)
            )
        except RuntimeError as error:
            raise self._group.explain(error) from None

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def is_success(self) -> bool:
        return self._work.is_success()

    def get_future(self) -> Any:
        return self._work.get_future()

    def result(self) -> Any:
        return self._work.result()


def _forward(name: str) -> Any:
    def call(self: DefaultGroup, *args: Any, **kwargs: Any) -> dist.Work:
        try:
            return _Following(getattr(self._inner(args), name)(*args, **kwargs), self)
        except RuntimeError as error:
            raise self.explain(error) from None

    call.__name__ = name
    return call


_COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "gather", "scatter", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base", "barrier", "send", "recv", "recv_anysource",
)  # fmt: skip
for _name in _COLLECTIVES:
    setattr(DefaultGroup, _name, _forward(_name))


def install(address: str, waiting: Waiting, *, wants_nccl: bool = False) -> DefaultGroup:
    """Make a DefaultGroup torch.distributed's default group. `waiting` is entered while it waits for peers."""
    if dist.is_initialized():
        raise UsageError(
            "torch.distributed has a default group already, which cannot follow the world",
            hint="call everstep.init_process_group() instead of torch.distributed.init_process_group()",
            code="default-group-exists",
        )
    made: list[DefaultGroup] = []

    def create(store: Any, rank: int, size: int, timeout: timedelta) -> DefaultGroup:
        made.append(DefaultGroup(address, waiting, wants_nccl=wants_nccl))
        return made[0]

    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, create, devices=["cpu", "cuda"])
    else:
        dist.Backend._plugins[BACKEND.upper()] = dist.Backend._BackendPlugin(create, False)
    dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1)
    groups = dist.distributed_c10d._world.pg_map
    groups[made[0]] = _Undivided(groups[made[0]])
    return made[0]


class _Undivided(tuple[Any, ...]):
    """Backend and store of the default group. torch takes both apart to make another group of them, of any backend."""

    def __iter__(self) -> Iterator[Any]:
        raise UsageError(
            "subgroups do not follow the world when workers come and go",
            hint="use the default group, or torch.distributed.init_process_group and the classic restart",
            code="subgroups-cannot-follow",
        )
