"""The same bits on every worker: random streams keyed by (seed, step, micro-batch), so that dropout is the same on
whichever worker and whenever a micro-batch is computed; and in exact mode, the same kernels in the same order."""

from __future__ import annotations

import hashlib
import random
import sys
from dataclasses import dataclass
from typing import Any

import torch

from everstep import env


def micro_batch_seed(seed: int, step: int, micro_batch: int) -> int:
    """A 64-bit seed without visible relation between neighbors. Frozen, down to the word "leaf": bits of old
    runs depend on it."""
    digest = hashlib.blake2b(f"everstep leaf {seed} {step} {micro_batch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def seed_everything(value: int) -> None:
    """Seed torch (CPU and every CUDA device in use), Python's `random`, and numpy where it is loaded.

    torch.manual_seed would format a stack trace at each call while CUDA is not initialized."""
    torch.default_generator.manual_seed(value)
    for generator in _cuda_generators():
        generator.manual_seed(value)
    random.seed(value)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(value & 0xFFFFFFFF)


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomStreams:
    """The states of the streams that `seed_everything` seeds."""

    tensors: torch.Tensor
    cuda: tuple[torch.Tensor, ...]  # by device
    python: tuple[Any, ...]
    arrays: Any

    @classmethod
    def now(cls) -> RandomStreams:
        numpy = sys.modules.get("numpy")
        return cls(
            tensors=torch.default_generator.get_state(),
            cuda=tuple(each.get_state() for each in _cuda_generators()),
            python=random.getstate(),
            arrays=numpy.random.get_state() if numpy is not None else None,
        )

    def restore(self) -> None:
        torch.default_generator.set_state(self.tensors)
        for generator, state in zip(_cuda_generators(), self.cuda, strict=False):  # CUDA may have started since
            generator.set_state(state)
        random.setstate(self.python)
        if self.arrays is not None:
            sys.modules["numpy"].random.set_state(self.arrays)


def _cuda_generators() -> tuple[torch.Generator, ...]:
    return tuple(torch.cuda.default_generators) if torch.cuda.is_initialized() else ()


def fix_kernels(threads: int, *, is_cuda: bool) -> None:
    """The number of threads changes how sums are split; cuBLAS, cuDNN and atomics have variants that differ by the
    run."""
    torch.set_num_threads(threads)
    if is_cuda:
        env.set_default("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS at its first use in the process
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nothing reads it
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
