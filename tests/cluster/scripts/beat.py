"""A script of torchrun's that knows nothing of us: all-reduces over gloo, beat after beat, until FOLDER/end exists.

beat.py FOLDER: tells each beat in a line of FOLDER/beats, "RANK SIZE PID"."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
is_over = torch.zeros(1)
while not is_over:
    is_over = torch.tensor([float((folder / "end").exists())])
    dist.all_reduce(is_over)  # all end at the same beat
    with (folder / "beats").open("a") as file:
        file.write(f"{dist.get_rank()} {dist.get_world_size()} {os.getpid()}\n")
    time.sleep(0.02)
dist.destroy_process_group()
