"""What travels with every step besides gradients: the header at its start, the pulse at its end.

The header says at which step a worker is, of which data, and how much each micro-batch weighs. The pulse carries every
decision that all workers must take together; all see the same pulses at the same step, so `decide_pulse` gives each of
them the same answer. Fixed size, no pickle. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from everstep.errors import StateMismatch

# generation, step, kind, epoch, position, samples, bytes of the note, micro-batches
_HEADER = struct.Struct("<qqqqqqqq")
# generation, step, three flags, digests of settings and weights, micro_batch_s, sum_s, bytes of used
_PULSE = struct.Struct("<qq???QQddq")
_FLAGS = ("wants_regroup", "is_leaving", "wants_check")
_PACKED = ("generation", "step", *_FLAGS, "settings", "weights", "micro_batch_s", "sum_s")
STEPS, ENDS = 0, 1


class DataPlace(NamedTuple):
    """Which data a step is made of."""

    epoch: int = 0
    position: int = 0
    samples: int = 0

    def __str__(self) -> str:
        return f"samples {self.position} to {self.position + self.samples} of epoch {self.epoch}"


NOWHERE = DataPlace()  # without a loader


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    generation: int
    step: int
    kind: int  # STEPS: a step follows; ENDS: this worker wants no further step
    place: DataPlace = NOWHERE
    weights: tuple[float, ...]  # by micro-batch; -1: computed by another worker
    note_bytes: int = 0  # of the note that this worker's pulse will carry

    def pack(self) -> bytes:
        place = (self.generation, self.step, self.kind, *self.place)
        head = _HEADER.pack(*place, self.note_bytes, len(self.weights))
        return head + struct.pack(f"<{len(self.weights)}d", *self.weights)

    @classmethod
    def unpack(cls, raw: bytes) -> Header:
        generation, step, kind, epoch, position, samples, note_bytes, num_micro_batches = _HEADER.unpack_from(raw)
        place, weights = (
            DataPlace(epoch, position, samples),
            struct.unpack_from(f"<{num_micro_batches}d", raw, _HEADER.size),
        )
        return cls(generation=generation, step=step, kind=kind, place=place, weights=weights, note_bytes=note_bytes)


def header_bytes(num_micro_batches: int) -> int:
    return _HEADER.size + 8 * num_micro_batches


def total_weight(headers: Sequence[Header]) -> float:
    """The sum of all micro-batches' weights in micro-batch order, after making sure that each micro-batch has exactly
    one owner."""
    first = headers[0]
    weights = []
    for rank, header in enumerate(headers):
        if (header.generation, header.step) != (first.generation, first.step):
            raise StateMismatch(
                f"rank {rank} is at step {header.step} of generation {header.generation}, "
                f"rank 0 at step {first.step} of generation {first.generation}",
                code="steps-differ",
            )
        if header.place != first.place:
            raise StateMismatch(
                f"in step {first.step}, rank {rank} trains on {header.place}, rank 0 on {first.place}",
                hint="leave an epoch at the same step on all workers: by trainer.num_steps, or by a value that "
                "everstep.reduce gave, not by counting batches; and use one batch_size",
                code="data-differs",
            )
    for micro_batch in range(len(first.weights)):
        owners = [rank for rank, header in enumerate(headers) if header.weights[micro_batch] >= 0]
        if len(owners) != 1:
            raise StateMismatch(
                f"micro-batch {micro_batch} of step {first.step} was computed by ranks {owners}, not by exactly one",
                code="micro-batch-owners-not-one",
            )
        weights.append(headers[owners[0]].weights[micro_batch])
    return in_order(weights)


def first_with_weight(headers: Sequence[Header]) -> int | None:
    """The rank that has computed the first micro-batch with any weight; None: there is none."""
    for micro_batch in range(len(headers[0].weights)):
        for rank, header in enumerate(headers):
            if header.weights[micro_batch] > 0:
                return rank
    return None


def in_order(weights: Iterable[float]) -> float:
    """Their sum, each addition rounded: not by `sum`, which gives other bits from Python 3.12 on."""
    total = 0.0
    for weight in weights:
        total += weight
    return total


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulse:
    generation: int
    step: int
    wants_regroup: bool  # newcomers wait to be let in
    is_leaving: bool  # this worker leaves in good order after the step
    used: bytes  # by parameter: 1 if one of this worker's micro-batches gave it a gradient
    wants_check: bool = False  # after this step, all are to sum their weights
    settings: int = 0  # digest of what this worker's last update used; 0: not known …
    weights: int = 0  # … and of its weights
    micro_batch_s: float = 0.0  # how long this worker takes for a micro-batch; 0: not known …
    sum_s: float = 0.0  # … and from its last one to the commit, including waits
    note: bytes = b""  # the door's note to all

    def pack(self) -> bytes:
        return _PULSE.pack(*(getattr(self, name) for name in _PACKED), len(self.used)) + self.used + self.note

    @classmethod
    def unpack(cls, raw: bytes) -> Pulse:
        *facts, num_used = _PULSE.unpack_from(raw)
        note_at = _PULSE.size + num_used
        named = dict(zip(_PACKED, facts, strict=True))
        return cls(**named, used=raw[_PULSE.size : note_at], note=raw[note_at:])


def pulse_bytes(num_parameters: int, note_bytes: int) -> int:
    return _PULSE.size + num_parameters + note_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class PulseDecision:
    must_regroup: bool  # after this step's commit, all arrive for the next generation
    leavers: tuple[int, ...]  # ranks that will not be in it
    used: bytes  # by parameter: used by any worker
    is_empty: bool  # no micro-batch had any weight: there is nothing to apply
    must_check: bool  # after the update, all sum their weights
    is_differing: bool  # workers have updated by other settings, or hold other weights
    micro_batch_s: tuple[float, ...]  # by rank
    sum_s: float  # that of the worker that waits least for others
    notes: tuple[bytes, ...]  # by rank


def union(flags: Iterable[bytes]) -> bytes:
    """Byte-wise OR of equally long flags, as one big integer: a loop over parameters would cost a step's slack."""
    either, length = 0, 0
    for each in flags:
        either |= int.from_bytes(each, "little")
        length = len(each)
    return either.to_bytes(length, "little")


def decide_pulse(pulses: Sequence[Pulse], total_weight: float) -> PulseDecision:
    leavers = tuple(rank for rank, pulse in enumerate(pulses) if pulse.is_leaving)
    wants = any(pulse.wants_regroup for pulse in pulses)
    used = union(pulse.used for pulse in pulses)
    return PulseDecision(
        must_regroup=wants or bool(leavers),
        leavers=leavers,
        used=used,
        is_empty=total_weight == 0,
        must_check=any(pulse.wants_check for pulse in pulses),
        is_differing=any(
            len({digest for digest in digests if digest}) > 1
            for digests in ([pulse.settings for pulse in pulses], [pulse.weights for pulse in pulses])
        ),
        micro_batch_s=tuple(pulse.micro_batch_s for pulse in pulses),
        sum_s=min((pulse.sum_s for pulse in pulses if pulse.micro_batch_s), default=0.0),
        notes=tuple(pulse.note for pulse in pulses),
    )
