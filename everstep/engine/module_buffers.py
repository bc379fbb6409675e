"""Model buffers such as batch-norm statistics: every micro-batch starts from the step's, and what the first
micro-batch with weight leaves behind is kept by all.

So they depend neither on who computes a micro-batch nor on the order, and a retried step starts where the first try
did. What the script itself changes between two steps, such as the count of an averaged model, is where the next one
starts. A buffer is looked up by its name each time: a module may put another tensor there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from everstep.engine.state import as_bytes
from everstep.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class _BufferPlace:
    """Where a buffer is found, and what it must be."""

    module: nn.Module
    name: str
    path: str  # for people
    shape: torch.Size
    dtype: torch.dtype

    @property
    def tensor(self) -> Tensor:
        found = self.module._buffers.get(self.name)
        if found is None or found.shape != self.shape or found.dtype != self.dtype:
            now = "gone" if found is None else f"{_words(found.shape, found.dtype)} now"
            raise UsageError(
                f"buffer {self.path} was {_words(self.shape, self.dtype)} at the first step and is {now}: the workers "
                "would not hold the same",
                hint="keep the shape and type of registered buffers; what each worker may have for itself is a plain "
                "attribute",
                code="buffer-changed-shape",
            )
        return found.detach()


class ModuleBuffers:
    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._places = list({(id(place.module), place.name): place for place in _found_in(modules)}.values())
        self._base = [tensor.clone() for tensor in self.tensors]
        self._is_in_step = False  # a micro-batch was begun since the last commit
        self._kept: int | None = None  # the micro-batch whose buffers are in `own`
        size = sum(tensor.numel() * tensor.element_size() for tensor in self._base)
        # The buffers as bytes, on their device, or on the CPU if they are on several; None: there are none.
        devices = {tensor.device for tensor in self._base}
        device = devices.pop() if len(devices) == 1 else torch.device("cpu")
        self.own = torch.empty(size, dtype=torch.uint8, device=device) if size else None

    @property
    def tensors(self) -> list[Tensor]:
        return [place.tensor for place in self._places]

    def begin_micro_batch(self) -> None:
        """Before every micro-batch."""
        self.restore()
        self._is_in_step = True

    def restore(self) -> None:
        """As at the last commit, but for what the script has changed since then and before the first micro-batch."""
        if not self._is_in_step:
            self.rebase()
            return
        for tensor, base in zip(self.tensors, self._base, strict=True):
            tensor.copy_(base)

    def commit(self) -> None:
        self._is_in_step = False
        self._kept = None

    def keep(self, micro_batch: int, held: Collection[int]) -> None:
        """After a micro-batch with weight: all workers take those of the first one. `held`: micro-batches that this
        worker holds."""
        if self.own is None or (self._kept in held and self._kept is not None and self._kept < micro_batch):
            return
        self._kept = micro_batch
        torch.cat([as_bytes(tensor.to(self.own.device)) for tensor in self.tensors], out=self.own)

    def rename(self, names: Mapping[int, int]) -> None:
        """The held micro-batches get other numbers."""
        self._kept = names.get(self._kept) if self._kept is not None else None

    def adopt(self, raw: Tensor) -> None:
        """Before the commit, on all workers: their own, or what a peer has sent."""
        offset = 0
        for tensor, base in zip(self.tensors, self._base, strict=True):
            size = tensor.numel() * tensor.element_size()
            base.copy_(_from_bytes(raw[offset : offset + size], tensor))
            tensor.copy_(base)
            offset += size

    def rebase(self) -> None:
        """After the whole state was loaded."""
        self._is_in_step = False
        for tensor, base in zip(self.tensors, self._base, strict=True):
            base.copy_(tensor)


def _found_in(modules: Sequence[nn.Module]) -> list[_BufferPlace]:
    return [
        _BufferPlace(module=part, name=name, path=f"{path}.{name}".lstrip("."), shape=found.shape, dtype=found.dtype)
        for module in modules
        for path, part in module.named_modules()
        for name, found in part._buffers.items()
        if found is not None and found.numel()
    ]


def _words(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


def _from_bytes(raw: Tensor, like: Tensor) -> Tensor:
    return raw.clone().view(like.dtype).view(like.shape)  # cloned: a slice may not be aligned for its type
