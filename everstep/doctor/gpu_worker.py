"""One GPU's part in measuring NCCL: a process for each GPU, started by its node's measuring worker.

    python -m everstep.doctor.gpu_worker '{"address": …, "port": …, "gpus": […], "own": 3, "listen": …}'

All processes go through the same rounds. In each round, pairs of GPUs exchange pieces in both directions at once, and
the first GPU of each pair puts its result in the store. With EVERSTEP_BACKEND=stand-in, gloo and CPU tensors take the
place of NCCL."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import timedelta

import torch
import torch.distributed as dist

from everstep import env
from everstep.doctor.gpus import BROKEN, Gpu, GpuLink, gpu_rounds, key_of
from everstep.doctor.measuring_worker import LINK_S, STORE_S, first_line, meet
from everstep.doctor.nodes import PEER_LOST
from everstep.engine import background
from everstep.engine.backend import Backend
from everstep.engine.communicator import Communicator, Nccl, StandIn
from everstep.engine.group import Group, GroupForming
from everstep.engine.tcp_store import connect_store
from everstep.engine.world import World
from everstep.errors import EverstepError
from everstep.waiting import wait_until

PURPOSE = "gpus"
SMALL_BYTES, LARGE_BYTES = 1 << 20, 64 << 20
PIECE_S = 0.2  # a large piece should take at most this long
NUM_LARGE = 4


def main() -> None:
    told = json.loads(sys.argv[1])
    gpus, own = [Gpu(**each) for each in told["gpus"]], told["own"]
    store = connect_store(told["address"], told["port"], STORE_S)
    device = device_of(gpus[own])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    for number, pairs in enumerate(gpu_rounds(gpus)):
        for index, (one, other) in enumerate(pairs):
            if gpus[own] in (one, other):
                world = World(
                    generation=number * len(gpus) + index,
                    rank=int(gpus[own] == other),
                    size=2,
                    store_address=told["address"],
                    store_port=told["port"],
                    job="doctor",
                )
                link = _measure(world, store, device, told["listen"], one, other)
                if world.rank == 0:
                    store.set(key_of(one, other), json.dumps(asdict(link)))
        meet(store, f"gpus/{number}", len(gpus), unless=BROKEN)


def device_of(gpu: Gpu) -> torch.device:
    is_stand_in = env.backend() == Backend.STAND_IN.value
    return torch.device("cpu") if is_stand_in else torch.device("cuda", gpu.number)


def _measure(world: World, store: dist.Store, device: torch.device, address: str, one: Gpu, other: Gpu) -> GpuLink:
    try:
        with _formed(world, device, address) as communicator:
            gb_per_s = _gb_per_s(communicator, world, store, device)
    except (RuntimeError, EverstepError) as error:
        return GpuLink(one=one, other=other, problem=first_line(error))
    return GpuLink(one=one, other=other, gb_per_s=gb_per_s)


@contextmanager
def _formed(world: World, device: torch.device, address: str) -> Iterator[Communicator]:
    attempt = GroupForming()
    with ExitStack() as open_things:
        if device.type == "cuda":
            communicator: Communicator = Nccl(world, PURPOSE, device, attempt)
        else:
            words = Group.form_in_generation(world, address, PURPOSE, attempt, has_neighbors=False)
            open_things.callback(words.close)
            communicator = StandIn(words, attempt)
        open_things.callback(communicator.end)
        yield communicator


def _gb_per_s(communicator: Communicator, world: World, store: dist.Store, device: torch.device) -> float:
    """The first GPU chooses the size of the large pieces, by how fast the small ones were."""
    small_s = [_exchange_s(communicator, world, SMALL_BYTES, device) for _ in range(3)]  # the first one connects
    key = f"{PURPOSE}/bytes/{world.generation}"
    if world.rank == 0:
        num_bytes = int(SMALL_BYTES / min(small_s[1:]) * PIECE_S)
        store.set(key, str(max(SMALL_BYTES, min(LARGE_BYTES, num_bytes))))
    store.wait([key], timedelta(seconds=2 * LINK_S))
    num_bytes = int(store.get(key))
    best_s = min(_exchange_s(communicator, world, num_bytes, device) for _ in range(NUM_LARGE))
    return num_bytes / best_s / 1e9


def _exchange_s(communicator: Communicator, world: World, num_bytes: int, device: torch.device) -> float:
    (peer,) = world.peers
    mine = torch.full((num_bytes // 4,), float(world.rank), device=device)
    theirs = torch.empty_like(mine)
    if device.type == "cpu":
        began = time.monotonic()
        communicator.exchange([(mine, peer)], [(theirs, peer)]).wait()
        took_s = time.monotonic() - began
    else:
        began_at, ended_at = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began_at.record()
        communicator.exchange([(mine, peer)], [(theirs, peer)]).wait()
        ended_at.record()
        if not wait_until(ended_at.query, LINK_S, "the other GPU", pause_s=0.001):
            raise RuntimeError(f"{num_bytes >> 20} MB did not arrive within {LINK_S:.0f} s")
        took_s = began_at.elapsed_time(ended_at) / 1e3
    if not bool((theirs == peer).all()):
        raise RuntimeError("the numbers that arrived are wrong")
    return took_s


if __name__ == "__main__":
    try:
        main()
    except dist.DistError as lost:  # the store, or one of the others
        print(lost, file=sys.stderr)
        sys.exit(PEER_LOST)
    finally:
        background.wait(LINK_S)
