"""Random numbers that depend only on what they are for.

A draw is a keyed hash of (experiment's seed, trial's number, path of the hyperparameter). So the order of keys, other
hyperparameters, the number of slots and the order of events cannot change it. It is turned into a value with whole
numbers and decimals: Python computes these the same way on every machine, while the last bit of `pow` and `exp`
depends on the C library."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import lru_cache
from hashlib import blake2b
from typing import Any

ONE = 1 << 64  # draws are fractions of it
_DECIMALS = Context(prec=34, rounding=ROUND_HALF_EVEN, Emin=-999_999, Emax=999_999)  # exp and ln round correctly


def draw(seed: int, number: int, path: Sequence[str]) -> int:
    """At least 0 and less than ONE."""
    key = f"[{seed},{number},{_named(tuple(path))}]".encode()
    return int.from_bytes(blake2b(key, digest_size=8, person=b"everstep.draw").digest(), "big")


@lru_cache(maxsize=4096)
def _named(path: tuple[str, ...]) -> str:
    return json.dumps(path)


def trial_seed(seed: int, number: int) -> int:
    """The seed of a trial's own randomness: 31 bits, since some libraries accept no more."""
    return draw(seed, number, ()) >> 33


def content_seed(seed: int, content: Mapping[str, Any]) -> int:
    """The seed of a trial that depends on its hyperparameters instead of its number."""
    return draw(seed, 0, ("hyperparameters", json.dumps(content, sort_keys=True))) >> 33


def index_below(size: int, drawn: int) -> int:
    return size * drawn // ONE


def between(low: float, high: float, drawn: int) -> float:
    """At least `low` and less than `high`."""
    return _clipped(float(_on_the_way(Decimal(low), Decimal(high), drawn)), low, high)


def between_powers(base: float, low: float, high: float, drawn: int) -> float:
    """A power of `base` with an exponent of at least `low` and less than `high`."""
    value = power(base, _on_the_way(Decimal(low), Decimal(high), drawn))
    first, last = _end(base, low), _end(base, high)  # of a base below 1, the first is the larger one
    return value if first == last else _clipped(value, first, last)


def between_values(low: float, high: float, drawn: int) -> float:
    """At least `low` and less than `high`; every factor is as likely as any other of the same size."""
    return _clipped(float(_DECIMALS.exp(_on_the_way(_ln(low), _ln(high), drawn))), low, high)


def power(base: float, exponent: float | Decimal) -> float:
    """`base` to the power of `exponent`, the same on every machine; infinite above the largest float."""
    return float(_DECIMALS.exp(_DECIMALS.multiply(Decimal(exponent), _ln(base))))


@lru_cache(maxsize=1024)
def _ln(value: float) -> Decimal:
    return _DECIMALS.ln(Decimal(value))


@lru_cache(maxsize=1024)
def _end(base: float, exponent: float) -> float:
    return power(base, exponent)


def _on_the_way(low: Decimal, high: Decimal, drawn: int) -> Decimal:
    part = _DECIMALS.divide(Decimal(drawn), Decimal(ONE))
    return _DECIMALS.fma(_DECIMALS.subtract(high, low), part, low)


def _clipped(value: float, low: float, high: float) -> float:
    """Rounding may have reached the excluded end of the range."""
    last = math.nextafter(high, low)
    return min(max(value, min(low, last)), max(low, last))
