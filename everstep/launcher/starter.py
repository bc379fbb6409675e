"""Starts workers: as forks of the nursery where there is one, else plainly. Callers need not know which.

The nursery is started in the background at once: workers started meanwhile wait for it, because one import of torch is
faster than one per worker. If it dies, workers are started plainly until the next one is
ready."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from everstep import env as names
from everstep.ipc.event_loop import EventLoop
from everstep.launcher.machine import count_gpus
from everstep.launcher.node import common_environment
from everstep.nursery.client import CONTROL, WORKERS, NurseryClient, NurseryGone
from everstep.nursery.programs import python_program
from everstep.nursery.warm import warm_nursery
from everstep.process import Child

COMING_S = 60.0  # a nursery that is not ready by then is not waited for
_READY_S = 0.3  # a nursery that an earlier run has left is ready at once, or not worth waiting for
_AGAIN_S = 2.0  # from a nursery's death to the next one: survivors need the cores first
_MAX_NURSERIES = 4


class Starter:
    """`open` it early, `attach` it to the agent's loop, `close` it when all is done."""

    def __init__(
        self,
        env: Mapping[str, str],
        nursery: NurseryClient | None,
        *,
        keep_warm_s: float = 0.0,
        keeps_control: bool = True,
        kind: str = WORKERS,
    ) -> None:
        self._env, self._keep_warm_s, self._keeps_control = dict(env), keep_warm_s, keeps_control
        self._kind = kind
        self._nursery = nursery
        self._parent: NurseryClient | None = None
        self._num_nurseries = 1
        self._is_awaited = nursery is not None  # only the first one is waited for
        self._waiting: list[Callable[[], None]] = []
        self._loop: EventLoop | None = None
        self.problem = ""  # why this node could not start the last worker
        self._say: Callable[[str], None] = lambda line: None

    @classmethod
    def open(
        cls,
        command: Sequence[str],
        *,
        num_workers: int,
        outer: Mapping[str, str],
        keep_warm_s: float = 0.0,
        keeps_control: bool = True,
        kind: str = WORKERS,
    ) -> Starter:
        """`keeps_control`: what is kept warm is also a process for the next run's coordinator. `kind`: of nursery."""
        env = nursery_environment(outer, num_workers)
        if not _can_have_nursery(command, outer):
            return cls(env, None)
        nursery = _warm_nursery(env, kind, may_start=keep_warm_s > 0, idle_s=keep_warm_s)
        nursery = nursery or NurseryClient.start(env, kind)
        return cls(env, nursery, keep_warm_s=keep_warm_s, keeps_control=keeps_control, kind=kind)

    @property
    def nursery_pid(self) -> int | None:
        """Of the nursery that workers come from now."""
        return self._nursery.pid if self._nursery is not None and self._nursery.is_ready else None

    @property
    def is_bereft(self) -> bool:
        """Whether the last worker died with the nursery that it was a fork of: not its own failure."""
        return self._parent is not None and self._parent.is_lost

    def attach(self, loop: EventLoop, say: Callable[[str], None]) -> None:
        self._loop, self._say = loop, say
        if self._nursery is not None:
            loop.watch(self._nursery, self._hear)
            loop.after(COMING_S, self._settle)

    def when_settled(self, act: Callable[[], None]) -> None:
        """Do it as soon as it is known how workers are started: now, or when the first nursery is ready or failed."""
        if self._is_awaited:
            self._waiting.append(act)
        else:
            act()

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        output: IO[bytes] | int | None = None,
        errors: IO[bytes] | int | None = None,
    ) -> Child:
        """As `Child.start`."""
        if self._nursery is not None and self._nursery.is_ready and python_program(command) is not None:
            try:
                child = self._nursery.start_worker(command, env=env, output=output, errors=errors)
                self._parent = self._nursery
                return child
            except NurseryGone as reason:
                self._say(f"a worker is started without the nursery: {reason}")
        self._parent = None
        return Child.start(command, env=env, output=output, errors=errors)

    def start_service(self, command: Sequence[str], *, env: Mapping[str, str], output: IO[bytes] | int | None) -> Child:
        """As `Child.start`, for other processes, such as the coordinator; from the thread that will wait for its end.
        It is a fork of a nursery of its own kind if an earlier run has kept one warm."""
        if self._nursery is not None and python_program(command) is not None:
            nursery = _warm_nursery(plain_environment(env), CONTROL, may_start=False, idle_s=self._keep_warm_s)
            try:
                if nursery is not None and nursery.await_ready(_READY_S):
                    return nursery.start_worker(command, env=env, output=output, is_only=True)
            except NurseryGone:
                pass
            if nursery is not None:
                nursery.close()
        return Child.start(command, env=env, output=output)

    def num_gpus(self) -> int | None:
        """As torch counts them; None without a nursery to ask."""
        if count_gpus() == 0:
            return 0
        try:
            if self._nursery is not None and self._nursery.await_ready(COMING_S):
                return self._nursery.num_gpus()
        except NurseryGone:
            pass
        return None

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """May be called again."""
        self._waiting.clear()
        if self._nursery is not None:
            self._forget()
            self._keep_control()

    # --- the nursery's life -------------------------------------------------------------------------

    def _hear(self) -> None:
        nursery = self._nursery
        assert nursery is not None
        nursery.hear()
        if nursery.is_ready:
            self._settle()
        elif nursery.problem:
            self._say(f"no nursery, workers are started plainly: {nursery.problem}")
            self._forget()
        elif nursery.is_gone:
            self._say(f"the nursery has ended, workers are started plainly: {nursery.last_words() or 'no last words'}")
            self._forget()
            assert self._loop is not None
            self._loop.after(_AGAIN_S, self._make_another)

    def _settle(self) -> None:
        self._is_awaited = False
        waiting, self._waiting = self._waiting, []
        for act in waiting:
            act()

    def _forget(self) -> None:
        nursery, self._nursery = self._nursery, None
        assert nursery is not None
        if self._loop is not None:
            self._loop.forget(nursery)
        nursery.close()
        self._settle()

    def _keep_control(self) -> None:
        """Have a nursery for the next run's coordinator. Only now: while a job starts, it needs the cores itself."""
        if self._keep_warm_s > 0 and self._keeps_control:
            env = plain_environment(names.everything())
            nursery = _warm_nursery(env, CONTROL, may_start=True, idle_s=self._keep_warm_s)
            if nursery is not None:
                nursery.close()

    def _make_another(self) -> None:
        if self._loop is not None and self._num_nurseries < _MAX_NURSERIES:
            self._num_nurseries += 1
            self._nursery = NurseryClient.start(self._env, self._kind)
            self._loop.watch(self._nursery, self._hear)


def nursery_environment(outer: Mapping[str, str], num_workers: int) -> dict[str, str]:
    """Variables that all workers of a node have in common, and none of the job."""
    return common_environment(plain_environment(outer), num_workers)


def plain_environment(outer: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in outer.items() if not name.startswith("EVERSTEP_")}


def _warm_nursery(env: Mapping[str, str], kind: str, *, may_start: bool, idle_s: float) -> NurseryClient | None:
    """One that will stay for `idle_s` after this run, if that is more than nothing."""
    nursery = warm_nursery(env, kind, may_start=may_start)
    if nursery is not None and idle_s > 0:
        try:
            nursery.keep_warm(idle_s)
        except NurseryGone:
            nursery.close()
            return None
    return nursery


def _can_have_nursery(command: Sequence[str], outer: Mapping[str, str]) -> bool:
    return (
        python_program(command) is not None
        and outer.get(names.NURSERY, "") != "off"
        and importlib.util.find_spec("torch") is not None
        and hasattr(os, "pidfd_open")
    )
