"""Model buffers such as batch-norm statistics: every leaf starts from the step's, and leaf 0's result is kept by all.

So they depend neither on who computes a leaf nor on the order, and a retried step starts where the first try did. What
the script itself changes between two steps, such as the count of an averaged model, is where the next one starts."""

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
        self._is_in_step = False  # a leaf was begun since the last commit
        size = sum(tensor.numel() * tensor.element_size() for tensor in self._tensors)
        self.leaf_zero = torch.empty(size, dtype=torch.uint8) if size else None  # as bytes; None: no buffers

    def begin_leaf(self) -> None:
        """Before every leaf."""
        self.restore()
        self._is_in_step = True

    def restore(self) -> None:
        """As at the last commit, but for what the script has changed since then and before the first leaf."""
        if not self._is_in_step:
            self.rebase()
            return
        for tensor, base in zip(self._tensors, self._base, strict=True):
            tensor.copy_(base)

    def commit(self) -> None:
        self._is_in_step = False

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
        self._is_in_step = False
        for tensor, base in zip(self._tensors, self._base, strict=True):
            base.copy_(tensor)


def _from_bytes(raw: Tensor, like: Tensor) -> Tensor:
    return raw.clone().view(like.dtype).view(like.shape)  # cloned: a slice may not be aligned for its type
