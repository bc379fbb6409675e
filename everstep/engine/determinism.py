"""What exact mode asks of torch: the same kernels in the same order on every worker.

The number of threads changes how sums are split; cuBLAS, cuDNN and atomics have variants that differ by the run."""

from __future__ import annotations

import torch

from everstep import env

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def fix_kernels(threads: int, *, is_cuda: bool) -> None:
    torch.set_num_threads(threads)
    if is_cuda:
        env.set_default(_WORKSPACE, ":4096:8")  # read by cuBLAS at its first use in the process
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
