"""NVIDIA's Multi-Process Service for a benchmark whose workers share a GPU: their kernels run side by side, not in time
slices. Only for measuring speed: under MPS, the death of one worker ends the others too."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_CONTROL = "nvidia-cuda-mps-control"
_TRY = "import torch; torch.ones(1, device='cuda').sum().item(); print(torch.cuda.device_count())"
_START_S, _TRY_S, _END_S = 20.0, 120.0, 20.0


@contextlib.contextmanager
def shared_gpu() -> Iterator[dict[str, str]]:
    """Start our own daemon, and yield the variables that lead workers to it. If it fails, say why and yield none."""
    with tempfile.TemporaryDirectory(prefix="everstep-mps-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ours = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in ours.values():
            os.mkdir(path)
        try:
            problem = _start(ours)
            if problem:
                print(f"MPS is off, so workers that share a GPU take turns: {problem}", flush=True)
            yield {} if problem else ours
        finally:
            _tell("quit", ours)


def _start(ours: dict[str, str]) -> str:
    """Why it does not work; "": it does."""
    env = {**os.environ, **ours}
    try:
        started = subprocess.run(
            [_CONTROL, "-d"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_START_S,
            check=False,
        )
        if started.returncode:
            return f"{_CONTROL} -d ended with exit code {started.returncode}"
        tried = subprocess.run(
            [sys.executable, "-c", _TRY], env=env, capture_output=True, text=True, timeout=_TRY_S, check=False
        )
    except FileNotFoundError:
        return f"{_CONTROL} is not installed"
    except subprocess.TimeoutExpired as late:
        return f"{late.cmd[0]} did not end within {late.timeout:.0f} s"
    if tried.returncode:
        return f"CUDA does not start under it: {tried.stderr.strip().splitlines()[-1:]}"
    has_served = (Path(ours["CUDA_MPS_LOG_DIRECTORY"]) / "server.log").exists()
    return "" if has_served or _tell("get_server_list", ours) else "CUDA does not use it"


def _tell(command: str, ours: dict[str, str]) -> str:
    """The daemon's answer; "" if it sent none, or no daemon is running."""
    try:
        done = subprocess.run(
            [_CONTROL],
            input=f"{command}\n",
            env={**os.environ, **ours},
            capture_output=True,
            text=True,
            timeout=_END_S,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
