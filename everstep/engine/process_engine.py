"""The engine of this process: made at its first use, ended with the script.

A script that comes to its end leaves in good order: the others continue, or all end together. One that dies of an
exception just breaks its connections, and the others learn it from its agent. Wrong use of us stops the job: what is
wrong in one worker's script is wrong in all."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from typing import Any

from everstep import env
from everstep.addresses import address_towards
from everstep.engine import background
from everstep.engine.communicator import FORM_S
from everstep.engine.default_group import DefaultGroup, install
from everstep.engine.fixed_world import Fixed, LoneMembership
from everstep.engine.leaving import ASKED, Leaving
from everstep.engine.membership import Membership
from everstep.engine.step import Engine
from everstep.engine.world import ALONE, World
from everstep.errors import UsageError
from everstep.ipc.progress_page import ProgressPage
from everstep.record import standing
from everstep.record.standing import Standing
from everstep.wire import WAITING

_engine: Engine | None = None
_default_group: DefaultGroup | None = None


def current(*, is_fixed: bool = False) -> Engine:
    """`is_fixed`: in a world that does not change, if there is no engine yet."""
    global _engine
    if _engine is None:
        _engine = Engine(_fixed_membership if is_fixed else _membership, ProgressPage(env.value(env.BOARD)))
        atexit.register(_end)
        standing.follow(_standing, EnginePeers())
    return _engine


def joined_world() -> World | None:
    """The world of this process's engine; None without one, or before it has joined."""
    return None if _engine is None or _engine.world is ALONE else _engine.world


def _standing() -> Standing | None:
    world = joined_world()
    return None if world is None else Standing(is_reporter=world.rank == 0, generation=world.generation)


class EnginePeers:
    """The workers of this process's engine, for reports."""

    @property
    def is_several(self) -> bool:
        return current().world.size > 1

    @property
    def is_asked_to_leave(self) -> bool:
        return current().regrouping.is_asked_to_leave

    def gather(self, value: Any) -> list[Any] | None:
        return current().gather(value)

    def leave(self) -> None:
        engine = current()
        if not engine.is_in_micro_batch and engine.offered is None:
            engine.work.data.leave()
            while not engine.regrouping.leave(ASKED):
                pass  # the others leave at this place, too
            raise Leaving

    def part(self, *, is_leaver: bool) -> None:
        engine = current()
        if not engine.is_in_micro_batch and engine.offered is None:
            engine.regrouping.part(is_leaver=is_leaver)


def follow_world(*, backend: str | None = None) -> Engine:
    """Let torch.distributed's default group follow the engine's world, and join.

    `backend`: gloo or nccl, for CUDA tensors. Gradients use it too, unless the trainer has its own backend or has taken
    its first step: all workers must use the same one."""
    global _default_group
    engine = current()
    if _default_group is None:
        _default_group = install(_address(), lambda: engine.regrouping.in_phase(WAITING), wants_nccl=backend == "nccl")
        engine.regrouping.follower = _default_group
        if not engine.work.is_built:
            engine.work.group_backend = backend
    engine.regrouping.join()
    return engine


def is_default_group_ours() -> bool:
    """Whether torch.distributed's default group follows the world."""
    return _default_group is not None


def compare_weights() -> None:
    """The script saves a checkpoint: all workers are to compare their weights with the next step."""
    if _engine is not None:
        _engine.work.comparison.is_wanted = True


def close() -> None:
    """End the engine of this process; the next use makes a new one."""
    global _engine, _default_group
    engine, _engine = _engine, None
    if _default_group is not None:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
        _default_group = None
    if engine is not None:
        engine.close()
        atexit.unregister(_end)
    background.wait(FORM_S + 1)  # the longest that a background thread takes


def _end() -> None:
    engine = _engine
    if engine is not None and not hasattr(sys, "last_type"):  # the script did not die of an exception
        engine.regrouping.leave("its script ended")
    elif engine is not None and sys.last_value is not None:
        engine.died_of(sys.last_value)
    close()


def _address() -> str:
    url = env.coordinator_url()
    return env.value(env.ADDRESS) or (address_towards(url) if url else "127.0.0.1")


def _fixed_membership(board: ProgressPage, on_closed: Callable[[int], None]) -> LoneMembership:
    return Fixed(env.value(env.ADDRESS)) if env.torchrun_size() > 1 else LoneMembership()


def _membership(board: ProgressPage, on_closed: Callable[[int], None]) -> LoneMembership | Membership:
    url = env.coordinator_url()
    if url is None:
        return _fixed_membership(board, on_closed)
    from everstep.client.calls import Coordinator

    token = env.token()
    if token is None:
        raise UsageError(
            f"{env.COORDINATOR}={url} is set, but no token",
            hint=f"set {env.TOKEN_FILE} to the coordinator's token file (mode 0600), or {env.TOKEN}",
            code="token-missing",
        )
    if not env.worker():
        raise UsageError(
            f"{env.WORKER} is not set", hint="start the script with `everstep run`", code="worker-name-missing"
        )
    return Membership(Coordinator(url, token, env.job()), url, env.worker(), board, on_closed)
