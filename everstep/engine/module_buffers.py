"""Model buffers such as batch-norm statistics: every leaf starts from the step's, and leaf 0's result is kept by all.

So they depend neither on who computes a leaf nor on the order, and a retried step starts where the first try did."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from everstep.engine.state import as_bytes


class ModuleBuffers:
    def __init__(self, modules: Sequence[nn.Module]) -> None:
        unique = {id(b): b for module in modules for b in module.buffers() if b.numel()}
        self._tensors = list(unique.values())
        self._base = [tensor.clone() for tensor in self._tensors]
        size = sum(tensor.numel() * tensor.element_size() for tensor in self._tensors)
        self.leaf_zero = torch.empty(size, dtype=torch.uint8) if size else None  # as bytes; None: no buffers

    def restore(self) -> None:
        """Before every leaf."""
        for tensor, base in zip(self._tensors, self._base, strict=True):
            tensor.copy_(base)

    def keep_leaf_zero(self) -> None:
        """After leaf 0."""
        if self.leaf_zero is not None:
            torch.cat([as_bytes(tensor.cpu()) for tensor in self._tensors], out=self.leaf_zero)

    def adopt_leaf_zero(self) -> None:
        """Before the commit, on all workers."""
        if self.leaf_zero is None:
            return
        offset = 0
        for tensor, base in zip(self._tensors, self._base, strict=True):
            size = tensor.numel() * tensor.element_size()
            base.copy_(_from_bytes(self.leaf_zero[offset : offset + size], tensor))
            tensor.copy_(base)
            offset += size

    def rebase(self) -> None:
        """After the whole state was loaded."""
        for tensor, base in zip(self._tensors, self._base, strict=True):
            base.copy_(tensor)


def _from_bytes(raw: Tensor, like: Tensor) -> Tensor:
    return raw.clone().view(like.dtype).view(like.shape)  # cloned: a slice may not be aligned for its type
