"""Import all that a first training step needs, and prove that the process may be forked.

Much of torch is imported only by the first step. What that is differs from release to release, so it is learned: a
throw-away fork does a step of torch's DistributedDataParallel and a step of Everstep, and reports what it has
imported."""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from everstep import env
from everstep.nursery.client import CONTROL, NODES, TRIALS
from everstep.nursery.warm import package_stamps
from everstep.waiting import wait_until

T = TypeVar("T")

# What makes up nearly all of it, so that the rehearsal is short.
_FOR_WORKERS = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.utils.data",
    "torch.optim",
    "torch._dynamo",
    "everstep.native",
    "everstep.client.calls",
    "runpy",
    "multiprocessing.popen_fork",
)
# Trials are short and many: also what only some scripts need. TensorBoard imports for seconds.
_FOR_TRIALS = (
    "everstep.pytorch",
    "everstep.controller",
    "everstep.checkpoint.saver.client",
    "everstep.data.once_per_node",
    "everstep.storage.local",
    "everstep.wire.page",
    "torch.utils.tensorboard",
    "encodings.cp437",
    "encodings.idna",
)
_FOR_CONTROL = (
    "everstep.cli.main",
    "everstep.cli.serve",
    "sqlite3",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "runpy",
)
_FOR_NODES = (
    "everstep.cli.main",
    "everstep.cli.pool",
    "everstep.pool.trial_node",
    "everstep.wire.pool",
    "everstep.jobs.run",
    "everstep.storage.local",
    "encodings.idna",
    "runpy",
)
_REHEARSAL_S = 30.0
_ENDING_S = 1.0  # for threads that end with a fork


def preload(kind: str) -> str:
    """Import; why this process must not be forked, "" if it may."""
    before = _open_descriptors()
    if kind in (CONTROL, NODES):
        _import(_FOR_CONTROL if kind == CONTROL else _FOR_NODES)
        if kind == NODES:
            package_stamps()  # each of its forks looks for a nursery
    else:
        _import(_FOR_WORKERS)
        _import(_learn())
        _import(_FOR_TRIALS if kind == TRIALS else ())
    _close(_open_descriptors() - before)
    return _problem()


def _open_descriptors() -> set[int]:
    # The list has one entry too many: the descriptor that it was read with, which is closed by now.
    return {number for number in map(int, os.listdir("/proc/self/fd")) if _is_open(number)}


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _close(descriptors: Iterable[int]) -> None:
    """Every fork would have what an import left open; a plain start has not. On aarch64, torch leaves files of
    /sys/devices/system/cpu open that it never reads again."""
    for descriptor in descriptors:
        os.close(descriptor)


def _import(names: Sequence[str]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as problem:
            # Made up at run time, importable only where it was imported, or missing in this release: a worker that
            # needs it will import it, and see the problem.
            print(f"{name}: {problem!r}", file=sys.stderr)


def _learn() -> list[str]:
    """The names of modules that a first step imports, beyond those that are here."""
    known = set(sys.modules)

    def rehearse() -> list[str]:
        try:
            _rehearse()
        except BaseException as problem:
            print(f"rehearsal: {problem!r}", file=sys.stderr)
        return [name for name in sys.modules if name not in known]

    return ask_fork(rehearse, _REHEARSAL_S) or []


def ask_fork(ask: Callable[[], T], timeout_s: float) -> T | None:
    """The answer of a fork that ends with it: whatever it does, this process stays as it is. None: it died, or
    took longer."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ours)
            with open(theirs, "w") as pipe:
                json.dump(ask(), pipe)
        finally:
            os._exit(0)
    os.close(theirs)
    deadline, body = time.monotonic() + timeout_s, b""
    try:
        with open(ours, "rb", buffering=0) as pipe:
            while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                if not (part := pipe.read(65536)):
                    return json.loads(body) if body else None
                body += part
        return None
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _rehearse() -> None:
    import torch
    import torch.distributed as dist

    import everstep

    theirs = {name: value for name, value in env.everything().items() if not name.startswith("EVERSTEP_")}
    env.replace({name: value for name, value in theirs.items() if name not in ("RANK", "WORLD_SIZE")})
    env.update({"GLOO_SOCKET_IFNAME": "lo"})
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    _step_of_torchs()
    dist.destroy_process_group()  # when no DDP is left: one that outlives its group may hang when it goes
    ours = torch.nn.Linear(4, 4)
    trainer = everstep.ElasticTrainer(ours, micro_batches=1)
    optimizer = trainer.prepare(torch.optim.SGD(ours.parameters(), lr=0.1))
    for _ in trainer.micro_batches(steps=1):
        with trainer.step():
            ours(torch.randn(2, 4)).sum().backward()
            optimizer.step()


def _step_of_torchs() -> None:
    import torch

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()


def _problem() -> str:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "importing torch has initialized CUDA, which no fork can use"
    # OpenBLAS has threads from its import on, and ends them at the first fork, which was the rehearsal's.
    if wait_until(lambda: len(_threads()) == 1, _ENDING_S, "threads of the imports to end", pause_s=0.001):
        return ""
    names = sorted(Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in _threads())
    return f"imports have started threads, which a fork would not have: {', '.join(names)}"


def _threads() -> list[str]:
    return os.listdir("/proc/self/task")
