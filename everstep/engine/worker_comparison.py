"""What the workers compare: the settings that their last update used, in each pulse, and their weights, now and then.

Ordinary mistakes, such as a scheduler that one worker steps more often than another, make weights drift apart without
an error. Digests travel; only where these differ are facts exchanged, to name what differs and between whom. A worker
that was given a peer's state has nothing to compare until its next update."""

from __future__ import annotations

import hashlib
import marshal
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

UNKNOWN = 0
PAUSE_S = 30.0  # between two checksums of all weights …
SHARE = 0.001  # … or longer: they take at most this share of the time

_SUM = "the checksum of "
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Facts = Mapping[str, str]
_Noted = dict[int, list[list[tuple[str, Any]]]]


class Comparison:
    """One worker's side."""

    def __init__(self) -> None:
        self._noted: _Noted = {}  # by optimizer and group, in the step under way …
        self._applied: _Noted = {}  # … and in the last one: an optimizer need not act in each
        self._sums: list[int] = []
        self._due_at = 0.0
        self.weights = UNKNOWN  # digest of the weights that are to be compared
        self.is_wanted = False  # the script saves a checkpoint

    def note_update(self, number: int, optimizer: Optimizer) -> None:
        """Right before this optimizer's step."""
        self._noted[number] = [_settings(group) for group in optimizer.param_groups]

    def note_weights(self, parameters: Sequence[Tensor]) -> None:
        """Right after an update that all have agreed to look at."""
        began = time.monotonic()
        self._sums = _sums(parameters)
        self.weights, self.is_wanted = _digest(self._sums), False
        now = time.monotonic()
        self._due_at = now + max(PAUSE_S, (now - began) / SHARE)

    def committed(self) -> None:
        """With the step: what was to be compared has matched, and what this update used comes next."""
        self._applied, self._noted = self._noted, {}
        self._sums, self.weights = [], UNKNOWN

    def is_due(self, now: float, *, is_first: bool) -> bool:
        """Whether all are to sum their weights; the first worker looks at the clock for all."""
        return self.is_wanted or (is_first and now >= self._due_at)

    def forget(self) -> None:
        """The state is another's now."""
        self._applied, self._noted, self._sums, self.weights = {}, {}, [], UNKNOWN

    @property
    def settings(self) -> int:
        """Digest of what the last update used."""
        plain = [[number, [sorted(group) for group in groups]] for number, groups in sorted(self._applied.items())]
        return _digest(plain) if plain else UNKNOWN

    def facts(self, names: Sequence[str]) -> Facts:
        """All that is compared, by name; `names`: of the parameters."""
        found = {
            f"{key} of optimizer {number}, group {place}": str(value)
            for number, groups in self._applied.items()
            for place, group in enumerate(groups)
            for key, value in group
        }
        if self._applied:
            found["the list of optimizers that acted"] = str(sorted(self._applied))
        return found | {f"{_SUM}{name}": f"{each:016x}" for name, each in zip(names, self._sums, strict=False)}


def _sums(parameters: Sequence[Tensor]) -> list[int]:
    """One for each, of its words: quick on any device, with one copy to the host."""
    if not parameters:
        return []
    plain = [torch.view_as_real(p.detach()) if p.is_complex() else p.detach() for p in parameters]
    each = [tensor.view(_WORDS[tensor.element_size()]).sum(dtype=torch.int64) for tensor in plain]
    return [int(total) & (2**64 - 1) for total in torch.stack(each).tolist()]


def way_out(difference: str) -> str:
    same = (
        "change learning rates and weights on all workers alike, by trainer.num_steps and not by a worker's rank or "
        "its own batches"
    )
    if difference.startswith(_SUM):
        return f"{same}; use machines of one kind, with as many threads: others round differently"
    return f"prepare each scheduler: trainer.prepare(optimizer, scheduler); {same}"


def first_difference(said: Sequence[tuple[str, Facts]]) -> str | None:
    """What differs, and between whom; `said`: by worker. A worker without a fact does not count."""
    differing = []
    for name in dict.fromkeys(name for _, facts in said for name in facts):
        holders: dict[str, list[str]] = defaultdict(list)
        for worker, facts in said:
            if name in facts:
                holders[facts[name]].append(worker)
        if len(holders) > 1:
            values = (f"{value} on {', '.join(workers)}" for value, workers in holders.items())
            differing.append(f"{name} is {' and '.join(values)}")
    if not differing:
        return None
    more = f"; {len(differing) - 1} more differ" if len(differing) > 1 else ""
    return differing[0] + more


def _settings(group: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, _plain(value)) for key, value in group.items() if key != "params" and not _is_away(value)]


def _is_away(value: Any) -> bool:
    """On a device: to look at it would make the host wait. The weights show it."""
    return isinstance(value, Tensor) and value.device.type != "cpu"


def _plain(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, Tensor):
        return value.tolist()
    return value.item() if hasattr(value, "item") else str(type(value))  # of numpy, or nothing to compare


def _digest(plain: Any) -> int:
    """Version 2 of marshal gives the same bytes for equal values, even if other objects share them."""
    return int.from_bytes(hashlib.blake2b(marshal.dumps(plain, 2), digest_size=8).digest(), "little") or 1
