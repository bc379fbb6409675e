"""The job of the benchmarks under torchrun: plain DDP, over gloo on the CPU and over NCCL on GPUs, with the same model
and a checkpoint every 10 steps."""

from __future__ import annotations

import argparse
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from everstep.events import emit

sys.path.insert(0, str(Path(__file__).parent))
from ddp_loop import Ddp, train
from device_time import WIDTH, DeviceModel
from gpus import own_device

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
GLOO_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--device", choices=[*BACKENDS], default="cpu")
    parser.add_argument(
        "--timeout-s", type=float, help="time limit of a collective; by default 60 s with gloo, torch's own with NCCL"
    )
    args = parser.parse_args()
    emit("script.began")
    torch.set_num_threads(1)
    device = own_device(args.device, int(os.environ["WORLD_SIZE"]))
    timeout_s = args.timeout_s or (GLOO_S if args.device == "cpu" else None)
    timeout = timedelta(seconds=timeout_s) if timeout_s else None
    dist.init_process_group(BACKENDS[args.device], timeout=timeout)
    rank, size = dist.get_rank(), dist.get_world_size()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    model = Ddp(DeviceModel(0.05, args.width).to(device))
    train(model, args.checkpoint, rank=rank, width=args.width, size=size, attempt=attempt)


if __name__ == "__main__":
    main()
