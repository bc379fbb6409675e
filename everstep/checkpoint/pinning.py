"""Memory that a GPU writes to by itself: blocks of the arena are registered with CUDA once their pages are there.

Where that is refused, copies go through CUDA's own small buffers: slower, and still beside training."""

from __future__ import annotations

import logging

import torch

from everstep.checkpoint.memory_blocks import GrowingBlock

log = logging.getLogger("everstep")

_PORTABLE = 1  # for all GPUs
_ALREADY = 712  # cudaErrorHostMemoryAlreadyRegistered


def pin(block: GrowingBlock) -> None:
    """Do nothing if no GPU is in use, or if it is done."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized() or not block.size_bytes:
        return
    if block.pinned_bytes == block.size_bytes:
        return
    runtime = torch.cuda.cudart()
    address = block.address
    problem = int(runtime.cudaHostRegister(address, block.size_bytes, _PORTABLE))
    if problem not in (0, _ALREADY):
        log.warning("checkpoints: CUDA cannot pin %d bytes (error %d): raise `ulimit -l`", block.size_bytes, problem)
        return
    block.pinned_bytes = block.size_bytes
    block.before_unmap = lambda: runtime.cudaHostUnregister(address)
