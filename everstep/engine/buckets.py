"""Where each parameter's gradient lives: fixed buckets, in reverse order of registration, with a size cap.

The layout depends on the parameters alone, never on timing, so that a newcomer's is the survivors'; its hash
is compared when joining. Consecutive buckets in one piece of memory form a run: between GPUs, a few large
messages are faster than many small ones. A `Flats` is one full set of such memory, with a view per parameter."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from everstep.engine.shared_memory import ALIGN, shared_tensors
from everstep.errors import UsageError

BUCKET_BYTES = 4 << 20  # measured on loopback: 1 MiB costs a quarter more, above 4 MiB nothing is gained
RUN_BYTES = 16 << 20  # measured over NCCL: 4 MiB takes more than twice as long, above 16 MiB nothing is gained
MANY = 64  # buckets of a large model are larger: it has this many full ones, so messages about them are few


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    index: int
    dtype: torch.dtype
    device: torch.device
    numel: int
    entries: tuple[tuple[int, int], ...]  # (parameter number, offset)


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketRun:
    """Consecutive buckets of one type. The gaps between them are summed with the rest."""

    dtype: torch.dtype
    device: torch.device
    buckets: tuple[int, ...]
    offsets: tuple[int, ...]  # of the buckets, in elements
    numel: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketLayout:
    buckets: tuple[Bucket, ...]
    runs: tuple[BucketRun, ...]
    bucket_of: tuple[int, ...]  # by parameter number
    digest: str

    @property
    def shapes(self) -> list[tuple[int, torch.dtype]]:
        """The size and type of each run's memory."""
        return [(run.numel, run.dtype) for run in self.runs]

    def in_buckets(self, runs: Sequence[Tensor]) -> list[Tensor]:
        """Views of the runs' memory, one for each bucket."""
        return [
            memory[offset : offset + self.buckets[bucket].numel]
            for run, memory in zip(self.runs, runs, strict=True)
            for bucket, offset in zip(run.buckets, run.offsets, strict=True)
        ]

    @property
    def device(self) -> torch.device:
        devices = {bucket.device for bucket in self.buckets}
        if len(devices) > 1:
            raise UsageError(
                f"parameters are on {sorted(map(str, devices))}",
                hint="put the whole model on one device: a worker trains on one",
                code="parameters-on-several-devices",
            )
        return devices.pop()

    @property
    def is_on_host(self) -> bool:
        return self.device.type == "cpu"


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """What gradients of this type are summed in: weighted by a number of samples, many a float16 would overflow."""
    return torch.float32 if dtype == torch.float16 else dtype


def lay_out(parameters: Sequence[nn.Parameter], bucket_bytes: int = BUCKET_BYTES) -> BucketLayout:
    """Fill buckets from the last parameter to the first: about the order in which backward makes gradients."""
    bucket_bytes = max(bucket_bytes, sum(p.numel() * sum_dtype(p.dtype).itemsize for p in parameters) // MANY)
    buckets: list[Bucket] = []
    open_entries: dict[tuple[torch.dtype, torch.device], list[tuple[int, int]]] = {}
    open_numel: dict[tuple[torch.dtype, torch.device], int] = {}

    def close(kind: tuple[torch.dtype, torch.device]) -> None:
        buckets.append(
            Bucket(
                index=len(buckets),
                dtype=kind[0],
                device=kind[1],
                numel=open_numel.pop(kind),
                entries=tuple(open_entries.pop(kind)),
            )
        )

    for number in reversed(range(len(parameters))):
        parameter = parameters[number]
        kind = (sum_dtype(parameter.dtype), parameter.device)
        offset = open_numel.get(kind, 0)
        if offset and (offset + parameter.numel()) * kind[0].itemsize > bucket_bytes:
            close(kind)
            offset = 0
        open_entries.setdefault(kind, []).append((number, offset))
        open_numel[kind] = offset + parameter.numel()
    for kind in list(open_entries):
        close(kind)
    bucket_of = {number: bucket.index for bucket in buckets for number, _ in bucket.entries}
    shapes = [(str(p.dtype), tuple(p.shape), p.stride(), bucket_of[n]) for n, p in enumerate(parameters)]
    return BucketLayout(
        buckets=tuple(buckets),
        runs=tuple(_in_runs(buckets)),
        bucket_of=tuple(bucket_of[number] for number in range(len(parameters))),
        digest=hashlib.sha256(repr(shapes).encode()).hexdigest()[:16],
    )


def _in_runs(buckets: Sequence[Bucket]) -> Iterator[BucketRun]:
    kind, members, offsets, end = None, list[int](), list[int](), 0
    for bucket in [*buckets, None]:
        is_next = bucket is not None and kind == (bucket.dtype, bucket.device)
        if members and (bucket is None or not is_next or (end + bucket.numel) * bucket.dtype.itemsize > RUN_BYTES):
            assert kind is not None
            yield BucketRun(
                dtype=kind[0], device=kind[1], buckets=tuple(members), offsets=tuple(offsets), numel=offsets[-1]
                + buckets[members[-1]].numel,
            )  # fmt: skip
            members, offsets, end = [], [], 0
        if bucket is not None:
            kind = (bucket.dtype, bucket.device)
            members.append(bucket.index)
            offsets.append(end)
            step = ALIGN // bucket.dtype.itemsize
            end = -(-(end + bucket.numel) // step) * step


def cut_points(numel: int, size: int) -> list[int]:
    """Where to cut this many elements into one slice per rank, of nearly equal length."""
    return [numel * rank // size for rank in range(size + 1)]


class Flats:
    """One flat buffer per bucket, and a view into it for each parameter, shaped and strided like it, of `sum_dtype`.

    On the host they lie in memory that neighbors can read, unless they are private."""

    def __init__(self, layout: BucketLayout, parameters: Sequence[nn.Parameter], *, is_private: bool = False) -> None:
        self.block, self.runs = shared_tensors(layout.shapes) if layout.is_on_host and not is_private else (None, [])
        if self.block is None:
            # Zeroed: gaps between buckets are summed too.
            self.runs = [torch.zeros(run.numel, dtype=run.dtype, device=run.device) for run in layout.runs]
        self.buffers = layout.in_buckets(self.runs)
        self.views: list[Tensor] = [torch.empty(0)] * len(parameters)
        for bucket, buffer in zip(layout.buckets, self.buffers, strict=True):
            for number, offset in bucket.entries:
                self.views[number] = _like(buffer, offset, parameters[number])


def _like(buffer: Tensor, offset: int, parameter: nn.Parameter) -> Tensor:
    if torch.ops.aten.is_non_overlapping_and_dense(parameter):
        # Counted from the start of the memory, which the buffers of one block share.
        return buffer.as_strided(parameter.size(), parameter.stride(), buffer.storage_offset() + offset)
    return buffer.narrow(0, offset, parameter.numel()).view(parameter.size())


def trainable(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """The parameters that get gradients, each once, in order of registration."""
    found: dict[int, nn.Parameter] = {}
    for module in modules:
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            if hasattr(parameter, "device_mesh"):
                raise UsageError(
                    f"parameter {name} is sharded (fully_shard, DTensor): its parts cannot follow a world that changes",
                    hint="use torch.distributed.init_process_group and your own loop: `everstep run` then restarts all "
                    "workers together after a loss, and everstep.Checkpointer saves sharded states",
                    code="parameter-sharded",
                )
            if parameter.is_sparse or parameter.layout != torch.strided:
                raise UsageError(f"parameter {name} is sparse", hint="use sparse=False", code="parameter-sparse")
            found.setdefault(id(parameter), parameter)
    return list(found.values())
