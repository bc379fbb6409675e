"""The job of benchmarks/recovery.py under nvidia-resiliency-ext: plain DDP inside its in-process wrapper.

After a fault the wrapper calls the function again in all processes that are left, which take up the last checkpoint.
Its intervals are the defaults, or all 50 ms with --tuned."""

import argparse
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from nvidia_resiliency_ext import inprocess

sys.path.insert(0, str(Path(__file__).parent))
from ddp_loop import Ddp, train
from device_time import WIDTH, DeviceModel

GLOO_S = 20.0


def wrapper(is_tuned: bool) -> inprocess.Wrapper:
    if not is_tuned:
        return inprocess.Wrapper()
    soon = timedelta(milliseconds=50)
    return inprocess.Wrapper(
        monitor_thread_interval=soon,
        monitor_process_interval=soon,
        heartbeat_interval=soon,
        progress_watchdog_interval=soon,
        last_call_wait=soon,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--tuned", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    is_first = os.environ["RANK"] == "0"
    keys = dist.TCPStore("127.0.0.1", int(os.environ["KEYS_PORT"]), is_master=is_first, wait_for_workers=False)
    model = DeviceModel(0.05)

    @wrapper(args.tuned)
    def restarted(call: inprocess.CallWrapper = None) -> None:  # type: ignore[assignment]  # the wrapper puts it there
        attempt = call.iteration
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = dist.PrefixStore(f"attempt{attempt}", keys)
        timeout = timedelta(seconds=GLOO_S)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
        train(Ddp(model), args.checkpoint, rank=rank, width=WIDTH, attempt=attempt)

    restarted()


if __name__ == "__main__":
    main()
