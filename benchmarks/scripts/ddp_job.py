"""The job of the benchmarks under torchrun: plain DDP, the same model, a checkpoint every 10 steps."""

from __future__ import annotations

import argparse
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from ddp_loop import Ddp, train
from device_time import WIDTH, DeviceModel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--width", type=int, default=WIDTH)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    model = Ddp(DeviceModel(0.05, args.width))
    train(model, args.checkpoint, rank=rank, width=args.width, size=size, attempt=attempt)


if __name__ == "__main__":
    main()
