"""What a step costs over torch's DistributedDataParallel: fast and exact, side by side in the same processes.

Two workers train copies of one model, in turns: a round of steps with plain DDP (no_sync accumulation where a worker
has several micro-batches), one with `fast`, one with `exact`, in rotating order; each round is compared with the DDP
round of the same turn. The last line is JSON: ratios of the medians with as many micro-batches as workers.

    python benchmarks/step_overhead.py [--rounds 30] [--device cpu|cuda]"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.statistics_of_ratios import paired_ratio
from everstep.engine.fixed_world import Fixed
from everstep.engine.step import Engine
from everstep.ipc.progress_page import ProgressPage
from everstep.native import ElasticTrainer

WORKERS = 2
# name: (width, layers, samples per micro-batch, steps per round)
MODELS = {
    "compute": {"cpu": (512, 6, 512, 6), "cuda": (2048, 8, 4096, 6)},
    "comm": {"cpu": (2048, 6, 8, 3), "cuda": (2048, 6, 64, 4)},
}
MICRO_BATCHES = {"V = W": 2, "V = 4 W": 8, "W does not divide V": 3}

Step = Callable[[int], None]


def build(width: int, layers: int, device: str) -> nn.Module:
    torch.manual_seed(0)
    stack = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*stack).to(device)


def data(width: int, samples: int, micro_batch: int, device: str) -> torch.Tensor:
    return torch.randn(samples, width, generator=torch.Generator().manual_seed(micro_batch)).to(device)


def plain_ddp(model: nn.Module, batches: dict[int, torch.Tensor], num_micro_batches: int) -> Step:
    rank = dist.get_rank()
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3, momentum=0.9)
    mine = list(range(rank * num_micro_batches // WORKERS, (rank + 1) * num_micro_batches // WORKERS))

    def step(_: int) -> None:
        optimizer.zero_grad()
        for micro_batch in mine:
            with contextlib.nullcontext() if micro_batch == mine[-1] else ddp.no_sync():
                ddp(batches[micro_batch]).square().mean().backward()
        optimizer.step()

    return step


def elastic(
    model: nn.Module, batches: dict[int, torch.Tensor], num_micro_batches: int, reduce: str, purpose: str
) -> Step:
    engine = Engine(lambda board, closed: Fixed("127.0.0.1", purpose), ProgressPage())
    trainer = ElasticTrainer(model, micro_batches=num_micro_batches, reduce=reduce, engine=engine)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9))

    def step(_: int) -> None:
        target = trainer.num_steps + 1
        while trainer.num_steps < target:
            micro_batch = engine.next_micro_batch()
            with trainer.step():
                optimizer.zero_grad()
                model(batches[micro_batch.index]).square().mean().backward()
                optimizer.step()

    return step


def measure(
    rounds: int, steps: int, systems: dict[str, Step], device: str
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds per step of each round, and processor seconds per step of all threads of this worker."""
    times: dict[str, list[float]] = {name: [] for name in systems}
    processor: dict[str, list[float]] = {name: [] for name in systems}
    names = list(systems)
    for step in systems.values():
        step(0)
        step(1)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            dist.barrier()
            started, worked = time.perf_counter(), time.process_time()
            for number in range(steps):
                systems[name](number)
            if device == "cuda":
                torch.cuda.synchronize()
            times[name].append((time.perf_counter() - started) / steps)
            processor[name].append((time.process_time() - worked) / steps)
    return times, processor


def worker(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if args.device == "cuda":
        torch.use_deterministic_algorithms(True)
    report: dict[str, float] = {}
    for kind, sizes in MODELS.items():
        width, layers, samples, steps = sizes[args.device]
        for label, num_micro_batches in MICRO_BATCHES.items():
            if args.only and args.only not in f"{kind} {label}":
                continue
            batches = {
                micro_batch: data(width, samples, micro_batch, args.device) for micro_batch in range(num_micro_batches)
            }
            systems = {
                "ddp": plain_ddp(build(width, layers, args.device), batches, num_micro_batches),
                "fast": elastic(
                    build(width, layers, args.device), batches, num_micro_batches, "fast", f"f{kind}{num_micro_batches}"
                ),
                "exact": elastic(
                    build(width, layers, args.device),
                    batches,
                    num_micro_batches,
                    "exact",
                    f"e{kind}{num_micro_batches}",
                ),
            }
            times, processor = measure(args.rounds, max(1, steps * WORKERS // num_micro_batches), systems, args.device)
            fast, exact = (paired_ratio(times[name], times["ddp"]) for name in ("fast", "exact"))
            ddp_ms = statistics.median(times["ddp"]) * 1e3
            if dist.get_rank() == 0:
                work = {name: paired_ratio(processor[name], processor["ddp"]).median for name in ("fast", "exact")}
                print(
                    f"{kind:8s} {label:20s} {ddp_ms:8.1f} ms  fast {fast}  exact {exact}"
                    f"  processor time: fast {work['fast']:.3f}, exact {work['exact']:.3f}",
                    flush=True,
                )
            if label == "V = W":
                report |= {f"fast_{kind}": round(fast.median, 4), f"exact_{kind}": round(exact.median, 4)}
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps(report), flush=True)
    os._exit(0)  # engines of a benchmark have no end of their own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", default="", help="measure rows with this text only")
    args = parser.parse_args()
    if "RANK" in os.environ:
        worker(args)
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    print(
        f"{'model':8s} {'micro-batches':14s} {'DDP step':>11s}  {WORKERS} workers: ratio to DDP, median [95 % interval]"
    )
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORKERS)}
    tuning = {"OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    command = [sys.executable, *sys.argv]
    children = [
        subprocess.Popen(command, env={**os.environ, **world, **tuning, "RANK": str(rank)}) for rank in range(WORKERS)
    ]
    sys.exit(max(child.wait() for child in children))


if __name__ == "__main__":
    main()
