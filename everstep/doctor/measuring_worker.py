"""A worker that measures its node, alone and around a ring with others, and prints what all of them found, as JSON.

A script for torchrun's environment, one such worker per node. First each measures its devices; then pairs of nodes
measure the way between them over gloo, one partner at a time (doctor/nodes.py). A device or a way that fails is a
result like any other. What all have found is exchanged through rank 0's store: every node knows of every node."""

from __future__ import annotations

import json
import platform
import socket
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import IO

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroupGloo

from everstep import env
from everstep.addresses import address_towards
from everstep.client.calls import Coordinator
from everstep.doctor.facts import Torch, gather, lines_of, measure_clock, nvidia_driver
from everstep.doctor.finding import Finding
from everstep.doctor.gpus import BROKEN, GpuLink, gpu_rounds, gpus_of, key_of
from everstep.doctor.here import judge_here
from everstep.doctor.node_pairs import Pair, rounds
from everstep.doctor.nodes import PEER_LOST, LinkReport, NodeReport
from everstep.engine.tcp_store import stop_lookups
from everstep.errors import EverstepError
from everstep.process import Child
from everstep.waiting import wait_until
from everstep.wire import from_json

STORE_S = 120.0  # the coordinator reports deaths; this is for what it cannot see
LINK_S = 15.0  # for two nodes to connect, and for one message
SPEED_S = 0.5  # per device
CPU_SIZE, GPU_SIZE = 512, 4096  # of the matrices
NUM_PINGS, PINGS_S = 200, 0.5
SMALLEST_BYTES, LARGEST_BYTES, NUM_LARGEST = 256 << 10, 16 << 20, 3
MIN_TRIES = 5  # of a device: one alone may have been held up
NUM_STAND_INS, STAND_IN = 2, "stand-in"  # with this EVERSTEP_BACKEND, processes take the place of GPUs: for tests
GPU_ROUND_S = 5.0  # a round usually takes well under a second
SLOW_S = 0.3  # after two pieces in a row that took this long, stop


def main() -> None:
    rank, size = env.torchrun_rank(), env.torchrun_size()
    address, port = env.torchrun_master()
    wait = timedelta(seconds=STORE_S)
    stop_lookups()
    store = dist.TCPStore(address, port, is_master=rank == 0, wait_for_workers=False, timeout=wait)
    report = _measure_alone(rank, num_nodes=size)
    meet(store, "alone", size)
    if size > 1:
        report = replace(report, group_problem=_form_plain_group(store, rank, size))
    links = []
    for number, pairs in enumerate(rounds(size)):
        links += [_measure_link(store, rank, pair, report.address) for pair in pairs if rank in pair]
        meet(store, f"round/{number}", size)
    report = replace(report, links=[link for link in links if link is not None])
    if _is_doctor():
        report = _measure_gpus(store, report, size)
    store.set(f"report/{rank}", json.dumps(asdict(report)))
    reports = [json.loads(store.get(f"report/{each}")) for each in range(size)]
    print(json.dumps({"rank": rank, "reports": reports}), flush=True)
    if rank > 0:
        store.add("end", 1)
    else:  # its store stays until all have read it
        meet(store, "end", size)


def meet(store: dist.Store, where: str, size: int, unless: str = "") -> None:
    """Wait until all have arrived. `unless`: a key that is set if some will never arrive."""
    store.add(where, 1)

    def are_here() -> bool:
        if unless and store.check([unless]):
            raise dist.DistError(store.get(unless).decode())
        return store.add(where, 0) >= size

    if not wait_until(are_here, STORE_S, "the others", pause_s=0.01):
        raise dist.DistError(f"not all {size} processes arrived within {STORE_S:.0f} s")


# --- alone ----------------------------------------------------------------------------------------


def _measure_alone(rank: int, *, num_nodes: int) -> NodeReport:
    url, token = env.coordinator_url(), env.token()
    address = env.value(env.ADDRESS) or (address_towards(url) if url else "127.0.0.1")
    report = NodeReport(
        rank=rank,
        node=socket.gethostname(),
        address=address,
        python=platform.python_version(),
        torch=torch.__version__,
        driver=nvidia_driver() or "",
        nccl=_nccl_version(),
        num_gpus=_num_gpus(),
        findings=_look_around(num_nodes=num_nodes),
    )
    try:
        gflops, device = min((_gflops(device), device) for device in _devices())
        report = replace(report, gflops=gflops, device=device)
    except RuntimeError as error:  # a broken GPU
        report = replace(report, device_problem=first_line(error))
    if url is not None and token is not None:
        try:
            with closing(Coordinator(url, token, env.job())) as coordinator:
                report = replace(report, clock_s=measure_clock(coordinator))
        except EverstepError:  # it is away: the agent reports that
            pass
    return report


def _is_doctor() -> bool:
    """Whether this is `everstep doctor`, not a check before a run."""
    return len(sys.argv) > 1


def _num_gpus() -> int:
    return NUM_STAND_INS if env.backend() == STAND_IN else torch.cuda.device_count()


def _nccl_version() -> str:
    if not torch.cuda.is_available() or not dist.is_nccl_available():
        return ""
    return ".".join(map(str, torch.cuda.nccl.version()))


def _look_around(*, num_nodes: int) -> list[Finding]:
    """With the log folder as an argument, what `everstep doctor` finds on this machine too."""
    if not _is_doctor():
        return []
    known = Torch(
        version=torch.__version__,
        cuda=torch.version.cuda,
        num_gpus=torch.cuda.device_count(),
        has_gloo=dist.is_gloo_available(),
    )
    return judge_here(gather(Path(sys.argv[1]), torch=known), num_nodes=num_nodes)


def _devices() -> list[str]:
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]


def _gflops(device: str) -> float:
    """The best of many short tries: measure the device, not others that use it for a moment."""
    size = CPU_SIZE if device == "cpu" else GPU_SIZE
    one, other = (torch.rand(size, size, device=device) for _ in range(2))
    best_s, began, num_tries = float("inf"), time.monotonic(), 0
    while time.monotonic() - began < SPEED_S or num_tries < MIN_TRIES:
        num_tries, tried = num_tries + 1, time.monotonic()
        product = one @ other
        if device != "cpu":
            torch.cuda.synchronize(device)
        best_s = min(best_s, time.monotonic() - tried)
    if not torch.isfinite(product).all():
        raise RuntimeError(f"{device} computes wrong numbers")
    return 2.0 * size**3 / best_s / 1e9


# --- with others ----------------------------------------------------------------------------------


def _form_plain_group(store: dist.Store, rank: int, size: int) -> str:
    """As scripts do it: gloo finds the address by the host's name. The problem, if there is one."""
    try:
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore("plain", store),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=LINK_S),
        )
        dist.all_reduce(torch.ones(1))
    except (RuntimeError, ValueError) as error:
        return first_line(error)
    dist.destroy_process_group()
    return ""


def _measure_link(store: dist.Store, rank: int, pair: Pair, address: str) -> LinkReport | None:
    """The first of the pair measures and reports; the second echoes."""
    is_first, peer = rank == pair[0], pair[1]
    try:
        link = _Link(dist.PrefixStore(f"link/{pair[0]}-{pair[1]}", store), rank=int(not is_first), address=address)
        if not is_first:
            link.echo()
            return None
        latency_s, mb_per_s = link.measure()
    except RuntimeError as error:
        return LinkReport(peer=peer, problem=first_line(error)) if is_first else None
    return LinkReport(peer=peer, latency_s=latency_s, mb_per_s=mb_per_s)


class _Link:
    """Two nodes and a gloo group of them. The first number of each message says whether another of its kind follows."""

    def __init__(self, store: dist.Store, *, rank: int, address: str) -> None:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # missing in torch's stub
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        options._threads = 1
        options._timeout = timedelta(seconds=LINK_S)
        store.set_timeout(timedelta(seconds=LINK_S))
        self._peer = 1 - rank
        self._gloo = ProcessGroupGloo(store, rank, 2, options)

    def measure(self) -> tuple[float, float]:
        """One-way latency in seconds, and MB/s."""
        began, times = time.monotonic(), list[float]()
        ping = torch.ones(2)
        while ping[0]:
            ping[0] = len(times) + 1 < NUM_PINGS and time.monotonic() - began < PINGS_S
            times.append(self._round_trip(ping))
        pieces: list[tuple[int, float]] = []
        for num_bytes in _sizes():
            piece = torch.ones(num_bytes // 4)
            are_slow = len(pieces) > 1 and min(seconds for _, seconds in pieces[-2:]) > SLOW_S
            is_last = len(pieces) + 1 == len(_sizes()) or are_slow
            piece[0] = not is_last
            pieces.append((num_bytes, self._round_trip(piece)))
            if is_last:
                break
        # The best of all: measure the link, not a moment's delay at one of its ends.
        return statistics.median(times) / 2, max(2 * size / seconds / 1e6 for size, seconds in pieces)

    def echo(self) -> None:
        ping = torch.ones(2)
        while ping[0]:
            self._return(ping)
        for num_bytes in _sizes():
            piece = torch.ones(num_bytes // 4)
            self._return(piece)
            if not piece[0]:
                break

    def _round_trip(self, tensor: Tensor) -> float:
        began = time.monotonic()
        back = torch.empty_like(tensor)
        self._send(tensor)
        self._recv(back)
        return time.monotonic() - began

    def _return(self, tensor: Tensor) -> None:
        self._recv(tensor)
        self._send(tensor)

    def _send(self, tensor: Tensor) -> None:
        self._gloo.send([tensor], self._peer, 0).wait()  # type: ignore[attr-defined]

    def _recv(self, tensor: Tensor) -> None:
        self._gloo.recv([tensor], self._peer, 0).wait()  # type: ignore[attr-defined]


# --- its GPUs with all others ---------------------------------------------------------------------


def _measure_gpus(store: dist.TCPStore, report: NodeReport, num_nodes: int) -> NodeReport:
    """Start a process for each GPU of this node; the processes of all nodes measure together (gpu_worker.py)."""
    store.set(f"gpus/of/{report.rank}", json.dumps([report.node, report.num_gpus]))
    said = [json.loads(store.get(f"gpus/of/{rank}")) for rank in range(num_nodes)]
    gpus = gpus_of([node for node, _ in said], [count for _, count in said])
    num_rounds = len(gpu_rounds(gpus))
    own = [index for index, gpu in enumerate(gpus) if gpu.rank == report.rank] if num_rounds else []
    told = {"address": store.host, "port": store.port, "gpus": [asdict(each) for each in gpus]}
    problem = ""
    with ExitStack() as running:
        logs = [running.enter_context(tempfile.TemporaryFile()) for _ in own]
        children = [
            running.enter_context(_start_gpu({**told, "own": each, "listen": report.address}, log))
            for each, log in zip(own, logs, strict=True)
        ]
        deadline = time.monotonic() + STORE_S + GPU_ROUND_S * num_rounds
        for index, child, log in zip(own, children, logs, strict=True):
            ended = child.wait(max(0.0, deadline - time.monotonic()))
            if ended is None or not ended.is_good:
                what = f"{gpus[index]}: {', '.join([str(ended or 'did not end in time'), *lines_of(log)[-1:]])}"
                if ended is None or ended.code != PEER_LOST:
                    store.set(BROKEN, what)
                    problem = what
                problem = problem or (store.get(BROKEN).decode() if store.check([BROKEN]) else what)
    pairs = [pair for each in gpu_rounds(gpus) for pair in each if pair[0].rank == report.rank]
    keys = [key_of(*pair) for pair in pairs if store.check([key_of(*pair)])]
    links = [from_json(GpuLink, store.get(key)) for key in keys]
    return replace(report, gpu_links=links, gpu_problem=problem)


def _start_gpu(told: dict[str, object], log: IO[bytes]) -> Child:
    return Child.start([sys.executable, "-m", "everstep.doctor.gpu_worker", json.dumps(told)], output=log)


# --- pieces, sizes, words -------------------------------------------------------------------------


def _sizes() -> list[int]:
    sizes = [SMALLEST_BYTES]
    while sizes[-1] < LARGEST_BYTES:
        sizes.append(2 * sizes[-1])
    return sizes + [LARGEST_BYTES] * (NUM_LARGEST - 1)


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


if __name__ == "__main__":
    try:
        main()
    except dist.DistError as lost:  # the store, and rank 0 with it
        print(lost, file=sys.stderr)
        sys.exit(PEER_LOST)
