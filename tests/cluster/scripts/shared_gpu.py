"""Imported before CUDA is used: several workers share one GPU, and compute the same bits on it.

NCCL refuses two ranks on one GPU unless each seems to be on its own host; then it connects them over sockets."""

from __future__ import annotations

import os

import torch

os.environ.update(NCCL_HOSTID=f"{os.getpid()}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # one algorithm for one shape
torch.backends.cudnn.deterministic = True
