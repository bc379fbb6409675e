"""One short text for a model's weights: equal if and only if they are, bit for bit."""

from __future__ import annotations

import hashlib

from torch import nn

from everstep.engine.data_parallel import DistributedDataParallel
from everstep.engine.state import as_bytes


def weights_digest(model: nn.Module) -> str:
    """SHA-256 of all parameters and buffers, by name; a wrapper for several workers is looked through."""
    inner = model.module if isinstance(model, DistributedDataParallel | nn.parallel.DistributedDataParallel) else model
    digest = hashlib.sha256()
    for name, tensor in sorted(inner.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(as_bytes(tensor.detach().cpu().contiguous()).numpy().tobytes())
    return digest.hexdigest()
