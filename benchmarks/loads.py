"""The models of benchmarks/step_overhead.py: one is limited by arithmetic, the other by the sum of its gradients.

Each model returns its loss. On the CPU, sizes suit the CPU's speed, or serve to try the backends for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    build: Callable[[torch.device], nn.Module]  # the same weights each time
    batch: Callable[[int, torch.device], Tensor]  # for the micro-batch of this number
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    steps: int  # in a round with one micro-batch per worker


# --- linear layers ------------------------------------------------------------------------------------


class Layers(nn.Sequential):
    def forward(self, inputs: Tensor) -> Tensor:
        loss: Tensor = super().forward(inputs).square().mean()
        return loss


def layers(width: int, num_layers: int, samples: int, steps: int, *, is_fused: bool = False) -> Load:
    """float32, SGD with momentum."""

    def build(device: torch.device) -> nn.Module:
        torch.manual_seed(0)
        return Layers(*(part for _ in range(num_layers) for part in (nn.Linear(width, width), nn.ReLU()))).to(device)

    def batch(micro_batch: int, device: torch.device) -> Tensor:
        return torch.randn(samples, width, generator=torch.Generator().manual_seed(micro_batch)).to(device)

    return Load(build=build, batch=batch, optimizer=partial(SGD, lr=1e-3, momentum=0.9, fused=is_fused), steps=steps)


# --- a transformer ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerSize:
    width: int
    num_layers: int
    num_heads: int
    num_words: int
    length: int  # of a sequence


class Block(nn.Module):
    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.num_heads = size.num_heads
        self.before_attention, self.before_dense = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.queries_keys_values = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.dense = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        parts = self.queries_keys_values(self.before_attention(inputs)).chunk(3, dim=-1)
        queries, keys, values = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        inputs = inputs + self.out(seen.transpose(1, 2).flatten(2))
        return inputs + self.dense(self.before_dense(inputs))


class Transformer(nn.Module):
    """Predicts each next word; all parameters in bfloat16."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.words = nn.Embedding(size.num_words, size.width)
        self.places = nn.Embedding(size.length, size.width)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.num_layers)))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.num_words, bias=False)

    def forward(self, sequences: Tensor) -> Tensor:
        known, wanted = sequences[:, :-1], sequences[:, 1:]
        places = torch.arange(known.shape[1], device=known.device)
        scores = self.head(self.norm(self.blocks(self.words(known) + self.places(places))))
        return functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())


def transformer(size: TransformerSize, num_sequences: int, steps: int) -> Load:
    """AdamW."""

    def build(device: torch.device) -> nn.Module:
        torch.manual_seed(0)
        with device:
            return Transformer(size).to(torch.bfloat16)

    def batch(micro_batch: int, device: torch.device) -> Tensor:
        generator = torch.Generator().manual_seed(micro_batch)
        return torch.randint(size.num_words, (num_sequences, size.length + 1), generator=generator).to(device)

    return Load(build=build, batch=batch, optimizer=partial(AdamW, lr=1e-4, fused=True), steps=steps)


# --- sizes --------------------------------------------------------------------------------------------

COMPUTE, COMMUNICATION = "compute", "comm"

_100M = TransformerSize(width=768, num_layers=12, num_heads=12, num_words=10_000, length=256)  # 101 M parameters
_SMALL = TransformerSize(width=64, num_layers=2, num_heads=2, num_words=100, length=16)

OVER_GLOO = {
    "cpu": {COMPUTE: layers(512, 6, 512, 6), COMMUNICATION: layers(2048, 6, 8, 3)},
    "cuda": {COMPUTE: layers(2048, 8, 4096, 6), COMMUNICATION: layers(2048, 6, 64, 4)},
}
ON_DEVICE = {
    "cpu": {COMPUTE: transformer(_SMALL, 4, 2), COMMUNICATION: layers(256, 2, 8, 2, is_fused=True)},
    "cuda": {
        COMPUTE: transformer(_100M, 192, 2),
        COMMUNICATION: layers(2048, 12, 8, 4, is_fused=True),  # 201 MB of gradients
    },
}
