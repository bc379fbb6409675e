"""Membership without a coordinator: alone under plain `python`, or the fixed world that torchrun gives.

Workers neither come nor go; a lost peer is an error that ends the worker, and torchrun restarts them all."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from everstep import env
from everstep.engine.group import Group, check_size
from everstep.engine.tcp_store import stop_lookups
from everstep.engine.world import World
from everstep.errors import PermanentError


class LoneMembership:
    """Membership without a coordinator: one generation, one member, always."""

    worker = "w0"
    newcomers = 0
    is_newcomer = False
    is_in_step = False

    def __init__(self) -> None:
        self._group = Group(World(generation=1, rank=0, size=1, reason="no coordinator: alone"))

    def announce(self) -> None: ...

    def others_step(self) -> int:
        return 0

    def others_state_bytes(self) -> int:
        return 0

    def arrive(self, generation: int) -> None: ...

    def is_closed(self, generation: int) -> bool:
        return False

    def next_group(self, after: int) -> Group:
        return self._group

    def report_broken(self, generation: int, reason: str, *, must_probe: bool = False) -> None: ...

    def report_settled(self, generation: int, step: int) -> None: ...

    def stop_job(self, reason: str) -> None: ...

    def may_leave(self, generation: int, step: int, reason: str, *, is_asked: bool = False) -> bool:
        return True

    def hold(self, settled: int, step: int, max_workers: int | None) -> None: ...

    def close(self) -> None: ...


class Fixed(LoneMembership):
    """The world of torchrun's environment: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT."""

    def __init__(self, address: str | None, purpose: str = "engine") -> None:
        self._purpose = purpose
        self.worker = f"w{env.torchrun_rank()}"
        self._address = address or "127.0.0.1"
        self._store: dist.TCPStore | None = None
        self._formed: Group | None = None
        self._is_broken = False

    def is_closed(self, generation: int) -> bool:
        return self._is_broken

    def report_broken(self, generation: int, reason: str, *, must_probe: bool = False) -> None:
        self._is_broken = True

    def next_group(self, after: int) -> Group:
        if after >= 1:
            is_ours = env.coordinator_url() is not None
            whose = "the world of torch's own DDP" if is_ours else "torchrun's world"
            way_out = "use everstep.DistributedDataParallel" if is_ours else "start the script with `everstep run`"
            message, hint = f"a peer was lost, and {whose} is fixed", f"{way_out}: the survivors then continue"
            raise PermanentError(message, hint=hint, code="fixed-world-lost-peer")
        if self._formed is None:
            self._formed = self._form()
        return self._formed

    def _form(self) -> Group:
        (host, port), rank = env.torchrun_master(), env.torchrun_rank()
        is_hosted = env.value("TORCHELASTIC_USE_AGENT_STORE") == "True" or dist.is_initialized()
        if rank == 0 and not is_hosted:
            stop_lookups()
            timeout = timedelta(seconds=60)
            self._store = dist.TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=timeout)
        world = World(
            generation=1,
            rank=rank,
            size=env.torchrun_size(),
            store_address=host,
            store_port=port,
            reason="torchrun's world",
            is_fixed=True,
        )
        check_size(world.size)
        attempt = env.num_restarts()
        group = Group.form(world, self._address, f"{self._purpose}/attempt{attempt}", timeout_s=300.0)
        group.watch_peers()
        return group

    def close(self) -> None:
        if self._formed is not None:
            self._formed.close()
        self._store = None
