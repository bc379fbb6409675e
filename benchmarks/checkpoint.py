"""What a checkpoint costs: Everstep, torch.save and torch.distributed.checkpoint, in turns, in one process.

A worker of `everstep run` trains a model with its optimizer and saves both. Blocking: the time until the call returns.
Cost: how much longer the steps until the state is durable take than the same number of steps without a save, before and
after. Durable: the time until everything is on disk. Loading ends when model and optimizer hold the state. A size that
does not fit into memory is skipped with a message; progress goes to stderr. The last line is JSON, for the first size.

    python benchmarks/checkpoint.py [--mb 500 2000] [--rounds 7] [--only ours copy]
    python benchmarks/checkpoint.py --cuda [--mb 8000]"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

WIDTH = {"cpu": 1024, "cuda": 4096}
BATCH = {"cpu": 16, "cuda": 8192}
BUSY_ROUNDS = 5
COPIES = {"memory": 9, "/dev/shm": 3}  # of the state: training, ours, copy_ and DCP's; DCP's alone
COPIES_WITHOUT_DCP = {"memory": 6}

Times = dict[str, dict[str, list[float]]]  # row: quantity: seconds


def now() -> float:
    return time.perf_counter()


def say(text: str) -> None:
    """Progress, for people."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Job:
    """A model whose parameters and momenta have the requested size, and its training step."""

    def __init__(self, megabytes: int, device: str) -> None:
        import torch
        from torch import nn

        self.device = device
        width = WIDTH[device]
        num_layers = max(2, round(megabytes * 1e6 / (2 * 4 * width * (width + 1))))
        torch.manual_seed(0)
        self.model = nn.Sequential(*[nn.Linear(width, width) for _ in range(num_layers)]).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6, momentum=0.9)
        self.inputs = torch.randn(BATCH[device], width, device=device)
        self.step()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()

    def steps(self, number: int) -> float:
        began = now()
        for _ in range(number):
            self.step()
        self.sync()
        return now() - began

    def sync(self) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def put(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sync()

    def tensors(self) -> list[Any]:
        momenta = [values["momentum_buffer"] for values in self.optimizer.state.values()]
        return [parameter.detach() for parameter in self.model.parameters()] + momenta

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())


class Bench:
    def __init__(self, job: Job, directory: Path) -> None:
        import everstep

        self.job, self.directory = job, directory
        self.times: Times = defaultdict(lambda: defaultdict(list))
        self.checkpointer = everstep.Checkpointer(directory / "ours", keep_latest=1)
        self.num_saves = 0
        self.num_steps = 2  # measured with each save: until it is durable
        self.stagers: dict[str, Any] = {}
        self.broken: set[str] = set()  # rows of torch's that have failed
        self.targets: list[Any] = []

    def note(self, row: str, **seconds: float) -> None:
        for quantity, value in seconds.items():
            self.times[row][quantity].append(value)

    def median(self, row: str, quantity: str) -> float:
        values = self.times[row][quantity]
        return statistics.median(values) if values else math.nan

    # --- saving ---------------------------------------------------------------------------------------

    def copy(self) -> None:
        """The limit: one copy into memory that is already allocated; pinned, if from a GPU."""
        import torch

        if not self.targets:
            is_cuda = self.job.device == "cuda"
            self.targets = [torch.empty(t.shape, dtype=t.dtype, pin_memory=is_cuda).zero_() for t in self.job.tensors()]
        self.job.sync()
        began = now()
        torch._foreach_copy_(self.targets, self.job.tensors(), non_blocking=True)
        self.job.sync()
        self.note("copy_", block=now() - began)

    def torch_save(self) -> None:
        import torch

        began = now()
        torch.save(self.job.state(), self.directory / "x.pt")
        self.note("torch.save", block=now() - began)

    def torch_save_fsync(self) -> None:
        import torch

        began = now()
        with open(self.directory / "x.pt", "wb") as file:
            torch.save(self.job.state(), file)
            file.flush()
            os.fsync(file.fileno())
        self.note("torch.save + fsync", block=now() - began, durable=now() - began)

    def dcp_save(self) -> None:
        import torch.distributed.checkpoint as dcp

        began = now()
        dcp.save(self.job.state(), checkpoint_id=self.directory / "dcp")
        self.note("DCP save", block=now() - began, durable=now() - began)

    def dcp_async_thread(self) -> None:
        self._dcp_async("DCP async_save, thread", "THREAD")

    def dcp_async_process(self) -> None:
        self._dcp_async("DCP async_save, process", "PROCESS")

    def _dcp_async(self, row: str, kind: str) -> None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        if row not in self.stagers:  # pinned where there is a GPU, shared, synchronous; kept, so that it is warm
            is_cuda = self.job.device == "cuda"
            self.stagers[row] = DefaultStager(StagingOptions(is_cuda, True, False, is_cuda))
        began = now()
        saved = dcp.async_save(
            self.job.state(),
            checkpoint_id=self.directory / "dcp",
            async_stager=self.stagers[row],
            async_checkpointer_type=AsyncCheckpointerType[kind],
        )
        blocked = now() - began
        saved.result()
        self.note(row, block=blocked, durable=now() - began)

    def ours(self, row: str = "ours") -> None:
        job = self.job
        base_s = job.steps(self.num_steps)
        self.num_saves += 1
        began = now()
        self.checkpointer.save(self.num_saves, {"model": job.model, "optimizer": job.optimizer})
        blocked = now() - began
        for _ in range(self.num_steps):
            job.step()
        job.sync()
        trained = now() - began
        self.checkpointer.wait()
        durable_s = max(trained, now() - began)
        base_s = (base_s + job.steps(self.num_steps)) / 2  # machines change their speed during a measurement
        self.note(row, block=blocked, cost=trained - base_s, durable=durable_s)

    def ours_durable(self) -> None:
        """Without training, which would only notice it between steps."""
        self.job.sync()
        self.num_saves += 1
        began = now()
        self.checkpointer.save(self.num_saves, {"model": self.job.model, "optimizer": self.job.optimizer}, wait=True)
        self.note("ours, waiting", block=now() - began, durable=now() - began)

    # --- loading --------------------------------------------------------------------------------------

    def load_memory(self) -> None:
        began = now()
        state = self.checkpointer.load()
        self.job.put(state)
        self.note("load ours, from memory", block=now() - began)

    def load_disk(self) -> None:
        import everstep
        from everstep import env

        saver = os.environ.pop(env.SAVER, None)
        try:
            with everstep.Checkpointer(self.directory / "ours") as other:
                began = now()
                self.job.put(other.load())
                self.note("load ours, from disk", block=now() - began)
        finally:
            if saver is not None:
                os.environ[env.SAVER] = saver

    def load_torch(self) -> None:
        import torch

        began = now()
        self.job.put(torch.load(self.directory / "x.pt", mmap=True, map_location="cpu"))
        self.note("torch.load(mmap=True)", block=now() - began)

    def load_dcp(self) -> None:
        import torch.distributed.checkpoint as dcp

        state = self.job.state()
        began = now()
        dcp.load(state, checkpoint_id=self.directory / "dcp")
        self.job.put(state)
        self.note("DCP load", block=now() - began)

    # --- all ------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """As any training does before its first checkpoint, which has a separate row."""
        say("warming up")
        self.job.steps(3)
        step_s = self.job.steps(3) / 3
        time.sleep(30.0 if self.job.device == "cuda" else 2.0)  # a first save never comes in the first seconds
        self.ours("ours, first save")
        durable_s = self.times["ours, first save"]["durable"][0]
        self.num_steps = max(2, min(12, math.ceil(durable_s / step_s)))
        say(f"a step takes {step_s:.2f} s; {self.num_steps} of them before, beside and after each save")

    def attempt(self, row: Callable[[], None]) -> None:
        """torch's functions do not work with every state in every version: a failed row is skipped with a message."""
        began = now()
        try:
            row()
        except Exception as error:
            if not row.__name__.startswith(("dcp", "load_dcp")):
                raise
            self.broken.add(row.__name__)
            print(f"{row.__name__} failed: {type(error).__name__}: {error}", flush=True)
        say(f"{row.__name__}: {now() - began:.1f} s")

    def run(self, rounds: int, only: list[str]) -> None:
        self.warm_up()
        rows = [
            self.copy, self.ours, self.torch_save, self.ours, self.torch_save_fsync, self.dcp_save,
            self.dcp_async_thread, self.ours, self.dcp_async_process, self.ours_durable,
        ]  # fmt: skip
        for number in range(rounds):
            for row in rows[number % len(rows) :] + rows[: number % len(rows)]:
                if (not only or row.__name__ in only) and row.__name__ not in self.broken:
                    gc.collect()
                    self.attempt(row)
        for _ in range(max(3, rounds // 2)):
            for row in (self.load_memory, self.load_disk, self.load_torch, self.load_dcp):
                if (not only or row.__name__ in only) and row.__name__ not in self.broken:
                    self.attempt(row)

    def run_busy(self, rounds: int) -> None:
        """With another process busy on every core."""
        burners = [
            subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(len(os.sched_getaffinity(0)))
        ]
        try:
            import torch

            for number in range(rounds):
                say(f"no idle core: {number + 1} of {rounds}")
                self.ours("ours, no idle core")
                began = now()
                torch._foreach_copy_(self.targets, self.job.tensors())
                self.note("copy_, no idle core", block=now() - began)
        finally:
            for burner in burners:
                burner.kill()
                burner.wait()

    def table(self) -> str:
        lines = [f"{'':26s} {'blocks':>10s} {'cost':>10s} {'durable':>10s}   medians in ms"]
        for row, quantities in self.times.items():
            cells = []
            for quantity in ("block", "cost", "durable"):
                values = quantities.get(quantity, [])
                cells.append(f"{statistics.median(values) * 1e3:10.1f}" if values else " " * 10)
            spread = " ".join(f"{value * 1e3:.1f}" for value in sorted(quantities.get("cost") or quantities["block"]))
            lines.append(f"{row:26s} {' '.join(cells)}   [{spread}]")
        return "\n".join(lines)

    def report(self) -> dict[str, float]:
        wanted = {
            "copy_s": ("copy_", "block"),
            "ours_block_s": ("ours", "block"),
            "ours_cost_s": ("ours", "cost"),
            "dcp_async_block_s": ("DCP async_save, thread", "block"),
            "ours_durable_s": ("ours, waiting", "durable"),
            "torch_save_fsync_s": ("torch.save + fsync", "durable"),
            "ours_first_block_s": ("ours, first save", "block"),
            "ours_first_cost_s": ("ours, first save", "cost"),
            "copy_busy_s": ("copy_, no idle core", "block"),
            "ours_cost_busy_s": ("ours, no idle core", "cost"),
            "load_memory_s": ("load ours, from memory", "block"),
            "load_disk_s": ("load ours, from disk", "block"),
            "torch_load_mmap_s": ("torch.load(mmap=True)", "block"),
            "dcp_load_s": ("DCP load", "block"),
        }
        found = {name: self.median(*where) for name, where in wanted.items()}
        return {name: round(value, 5) for name, value in found.items() if not math.isnan(value)}


def too_large(megabytes: int, only: list[str]) -> str:
    """Why a state of this size is not measured on this machine; empty if it is."""
    from everstep.checkpoint.memory import look_for_memory

    free = {"memory": look_for_memory().free_bytes, "/dev/shm": shutil.disk_usage("/dev/shm").free}
    has_dcp = not only or any("dcp" in row for row in only)
    for where, copies in (COPIES if has_dcp else COPIES_WITHOUT_DCP).items():
        needed = copies * megabytes * 1e6
        if needed > free[where]:
            return f"{megabytes} MB left out: needs {needed / 1e9:.1f} GB of {where}, free {free[where] / 1e9:.1f}"
    return ""


def worker(args: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    warnings.filterwarnings("ignore")
    device = "cuda" if args.cuda else "cpu"
    if not args.cuda:
        torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo,cuda:nccl" if args.cuda else "gloo")
    reports = []
    for megabytes in args.mb:
        if not args.cuda and (problem := too_large(megabytes, args.only)):
            print(problem, flush=True)
            continue
        directory = Path(tempfile.mkdtemp(prefix="everstep-", dir=args.directory))
        try:
            bench = Bench(Job(megabytes, device), directory)
            print(f"{bench.job.size_bytes / 1e6:.0f} MB in {len(bench.job.tensors())} tensors on {device}", flush=True)
            bench.run(args.rounds, args.only)
            if not args.cuda and (not args.only or "busy" in args.only):
                bench.run_busy(min(args.rounds, BUSY_ROUNDS))
            print(bench.table(), flush=True)
            reports.append(bench.report())
            bench.checkpointer.close()
            del bench
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        gc.collect()
    print(json.dumps(reports[0] if reports else {}), flush=True)
    os._exit(0)  # DCP's processes are not waited for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mb", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--only", nargs="+", default=[], help="rows, by the names of their methods")
    parser.add_argument("--directory", help="folder for the checkpoints; default: the one for temporary files")
    args = parser.parse_args()
    args.mb = args.mb or ([8000] if args.cuda else [500, 2000])
    if "RANK" in os.environ:
        worker(args)
        return
    with tempfile.TemporaryDirectory(prefix="everstep-") as logs:
        command = [sys.executable, "-m", "everstep", "run", "--log-dir", logs, *sys.argv]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, check=False)
        lines = [line.removeprefix("[w0] ") for line in ended.stdout.decode().splitlines()]
        print("\n".join(lines))
    sys.exit(ended.returncode)


if __name__ == "__main__":
    main()
