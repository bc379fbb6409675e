"""torch.distributed's default group, following the world.

A process group of "all workers of this generation": after a regroup, the same object has another rank
and size, and its collectives run over the new generation. The real group underneath is formed at its first use, so
that scripts which never call a collective pay nothing. A loss in a collective is PeerLost.

If gradients travel over NCCL, or the script asked for backend="nccl", its collectives on CUDA tensors use NCCL too,
over a separate communicator. The host waits for each of them, because work queued after a broken one would read
garbage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroupGloo

from everstep import env
from everstep.engine.backend import Backend
from everstep.engine.communicator import Nccl
from everstep.engine.device_link import DeviceLink
from everstep.engine.group import WAIT_S, Group, GroupForming, generation_store, gloo_words
from everstep.engine.world import ALONE, World
from everstep.errors import PeerLost, UsageError
from everstep.waiting import wait_until

BACKEND = "everstep"

Waiting = Callable[[], AbstractContextManager[None]]
VERDICT_S = 2.0  # after a failed collective, the coordinator may take this long to close the generation …
LOSS_S = 60.0  # … or this long if a connection has ended: reports may be slow on a busy machine
_LOOK_S = 0.05


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
        self._engines: Group | None = None  # the engine's group of the same generation
        self._link: DeviceLink | None = None

    def follow(self, group: Group) -> None:
        self._attempt.give_up()  # a thread that is waiting for the others in this attempt holds the lock
        with self._lock:
            old, self._group, self._world, self._attempt = self._group, None, group.world, GroupForming()
            self._is_closed.clear()
            link, self._link, self._engines = self._link, None, group
        if group.is_broken:  # closed meanwhile
            self.break_()
        if old is not None:
            old.close()
        if link is not None:
            link.abort()
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
        if (link := self._link) is not None:
            link.abort()

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

    def wait_for(self, work: dist.Work, link: DeviceLink | None, timeout: timedelta) -> bool:
        """`link`: carries the work; None: gloo does."""
        group = self._group
        with self._waiting():
            if link is not None:
                link.await_end_of(work)
            if link is not None or group is None:
                return work.wait(timeout)
            return group.unless_broken(lambda: work.wait(timeout))

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
        if self._link is not None:
            self._link.abort()
        self._group = self._link = None

    def abort(self) -> None:
        self.break_()

    def start(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dist.Work:
        """Start one of torch's collectives."""
        device = _cuda_device(args)
        link = self._link_for(device) if device is not None else None
        if link is None:
            return _Following(getattr(self._inner_gloo(), name)(*args, **kwargs), None, self)
        nccl = link.await_connected()
        assert isinstance(nccl, Nccl)
        for options in args:
            if hasattr(options, "asyncOp"):
                options.asyncOp = True  # otherwise torch returns no work, and only the caller's stream waits
        return _Following(getattr(nccl.group, name)(*args, **kwargs), link, self)

    def _link_for(self, device: torch.device) -> DeviceLink | None:
        with self._lock:
            group = self._engines
            if group is None or not (self._wants_nccl or group.link is not None):
                return None
            if self._link is None:
                self._meet(group, "script")
                self._link = DeviceLink(group, Backend.NCCL, device, is_exact=False, name="script")
            if self._is_closed.is_set():  # `break_` came too early to see this link
                self._link.abort()
            return self._link

    def _inner_gloo(self) -> ProcessGroupGloo:
        with self._lock:
            if self._world.size == 1:
                self._solo = self._solo or ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=60))
                return self._solo
            if self._group is None:
                try:
                    self._group = self._form()
                except Exception as error:
                    raise PeerLost(
                        f"generation {self._world.generation} is broken: {gloo_words(error)}", code="collective-broken"
                    ) from error
                if self._attempt.is_given_up:  # before `break_` could see the group
                    self._group.break_()
            assert self._group.gloo is not None
            return self._group.gloo

    def _form(self) -> Group:
        assert self._engines is not None
        self._meet(self._engines, "user")
        purpose = f"{self._engines.purpose}/user"  # after torchrun's restart, the old keys are still there
        group = Group.form_in_generation(self._world, self._address, purpose, self._attempt, has_neighbors=False)
        assert group.gloo is not None
        group.gloo._set_default_timeout(timedelta(seconds=WAIT_S))
        return group

    def _meet(self, group: Group, purpose: str) -> None:
        """Wait until all workers have reached their first collective: one may be hours late, but forming has a
        deadline."""
        world, attempt = group.world, self._attempt
        if world.size == 1:
            return
        with self._waiting(), attempt.connecting(world):
            store = generation_store(world, f"{group.purpose}/{purpose}/here", attempt=attempt)
            store.set(str(world.rank), "")
            all_of_them = [str(rank) for rank in range(world.size)]
            wait_until(
                lambda: attempt.is_given_up or store.check(all_of_them), WAIT_S, "the others to reach a collective",
                pause_s=0.001, longest_pause_s=_LOOK_S,
            )  # fmt: skip
        if attempt.is_given_up:
            raise PeerLost(f"generation {world.generation} was closed", code="collective-closed")


def _cuda_device(arguments: Any) -> torch.device | None:
    """The GPU that holds a collective's tensors; None: they are on the CPU."""
    if isinstance(arguments, Tensor):
        return arguments.device if arguments.is_cuda else None
    if isinstance(arguments, list | tuple):
        return next((device for each in arguments if (device := _cuda_device(each)) is not None), None)
    return None


class _Following(dist.Work):
    """A work whose failure may be the loss of a peer."""

    def __init__(self, work: dist.Work, link: DeviceLink | None, group: DefaultGroup) -> None:
        super().__init__()
        self._work = work
        self._link = link
        self._group = group

    def wait(self, timeout: timedelta = timedelta(seconds=WAIT_S)) -> bool:
        try:
            return self._group.wait_for(
                self._work, self._link, timeout if timeout.total_seconds() > 0 else timedelta(seconds=WAIT_S)
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
            return self.start(name, args, kwargs)
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
