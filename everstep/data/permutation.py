"""A shuffle of n samples that is never written down: any position of it in O(1), for 10^9 samples and more.

A keyed Feistel network over a domain of a × b ≥ n pairs (a = ⌈√n⌉) with cycle walking. The numbers depend on
(n, seed, epoch) alone: no random generator of torch, numpy or Python is used, so a checkpoint resumes the same epoch on
any platform and with any version of them. Not for cryptography. Knows nothing of workers or datasets."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable
from typing import SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everstep.errors import UsageError

LARGEST = 2**62
ROUNDS = 6  # with 3 and 4, positions a row apart are visibly related
# A round of a small domain has few outcomes: 6 rounds would leave traces that show over thousands of epochs.
ROUNDS_OF_SMALL = ((2**8, 24), (2**16, 12))
BLOCK = 2**13  # positions at a time: four such buffers stay in a core's own cache

_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # splitmix64's
_HALF = np.uint64(32)

Numbers = NDArray[np.uint64]


class Permutation:
    """The numbers 0 … n-1 in an order that (seed, epoch) chooses: p[i], p[a:b], p.at(positions), p.inverse(values).

    Positions are counted from 0; a negative one, or one past the end, is an IndexError also in a slice, since a slice
    that is silently shorter would be lost samples. `rounds` is for the tests that show what too few would do."""

    def __init__(self, n: int, seed: int = 0, epoch: int = 0, *, rounds: int | None = None) -> None:
        n, seed, epoch = operator.index(n), operator.index(seed), operator.index(epoch)
        if not 0 <= n <= LARGEST:
            raise UsageError(
                f"n={n} is not from 0 to 2^62", hint="pass len(dataset)", code="permutation-size-out-of-range"
            )
        self.n, self.seed, self.epoch = n, seed, epoch
        rows = max(1, math.isqrt(n - 1) + 1 if n > 1 else 1)
        columns = max(1, -(-n // rows))
        self._last = np.uint64(max(n, 1) - 1)
        self._rows, self._columns = np.uint64(rows), np.uint64(columns)
        self._keys = _round_keys(seed, epoch, rounds or _num_rounds(n))

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"Permutation({self.n}, seed={self.seed}, epoch={self.epoch})"

    @overload
    def __getitem__(self, where: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, where: slice) -> NDArray[np.int64]: ...
    def __getitem__(self, where: SupportsIndex | slice) -> int | NDArray[np.int64]:
        if not isinstance(where, slice):
            position = operator.index(where)
            if not 0 <= position < self.n:
                raise IndexError(f"position {position} of a permutation of {self.n} numbers")
            return int(self.at(position))
        start, stop, step = _bounds(where, self.n)
        return self._through(np.arange(start, stop, step, dtype=np.uint64), self._forward)

    def at(self, positions: ArrayLike) -> NDArray[np.int64]:
        """The values at these positions, in the shape they were given."""
        return self._through(self._checked(positions, "position"), self._forward)

    def inverse(self, values: ArrayLike) -> NDArray[np.int64]:
        """The positions at which these values stand: p.inverse(p.at(i)) is i. Audits what was read."""
        return self._through(self._checked(values, "value"), self._backward)

    def _checked(self, given: ArrayLike, what: str) -> Numbers:
        numbers = np.asarray(given)
        if numbers.size == 0:
            return np.empty(numbers.shape, np.uint64)
        if numbers.dtype.kind not in "iu":
            raise TypeError(f"{what}s are integers, not {numbers.dtype}")
        low, high = int(numbers.min()), int(numbers.max())
        if low < 0 or high >= self.n:
            raise IndexError(f"{what} {low if low < 0 else high} of a permutation of {self.n} numbers")
        return numbers.astype(np.uint64, order="C")  # a copy in one piece: it is changed in place

    def _through(self, numbers: Numbers, network: Callable[[Numbers, Numbers], None]) -> NDArray[np.int64]:
        """Send the numbers, in place and a block at a time, through the network until all of them are below n."""
        flat = numbers.reshape(-1)
        scratch = np.empty((3, min(BLOCK, flat.size)), np.uint64)
        for start in range(0, flat.size, BLOCK):
            block = flat[start : start + BLOCK]
            network(block, scratch[:, : block.size])
            while block.max() > self._last:  # the domain is a little larger than n: walk on until inside
                outside = np.flatnonzero(block > self._last)
                walkers = block[outside]
                network(walkers, scratch[:, : walkers.size])
                block[outside] = walkers
        return numbers.view(np.int64)

    def _forward(self, block: Numbers, scratch: Numbers) -> None:
        self._turn(block, scratch, list(enumerate(self._keys)), np.add, np.subtract)

    def _backward(self, block: Numbers, scratch: Numbers) -> None:
        self._turn(block, scratch, list(enumerate(self._keys))[::-1], np.subtract, np.add)

    def _turn(
        self, block: Numbers, scratch: Numbers, rounds: list[tuple[int, np.uint64]], turn: np.ufunc, wrap: np.ufunc
    ) -> None:
        row, column, hashed = self._split(block, scratch)
        for index, key in rounds:
            source, target, size = (row, column, self._columns) if index % 2 else (column, row, self._rows)
            _hash(source, size, key, hashed)
            turn(target, hashed[0], out=target)
            wrap(target, size, out=hashed[0])  # below 0 it wraps round to a huge number: the smaller is inside
            np.minimum(target, hashed[0], out=target)
        self._join(row, column)

    def _split(self, block: Numbers, scratch: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The block as rows and columns (the block itself), and the two rows of scratch that are left."""
        row, hashed = scratch[0], scratch[1:]
        np.floor_divide(block, self._columns, out=row)
        np.multiply(row, self._columns, out=hashed[0])
        block -= hashed[0]
        return row, block, hashed

    def _join(self, row: Numbers, column: Numbers) -> None:
        row *= self._columns
        column += row


def _num_rounds(n: int) -> int:
    return next((rounds for limit, rounds in ROUNDS_OF_SMALL if n <= limit), ROUNDS)


def _round_keys(seed: int, epoch: int, rounds: int) -> list[np.uint64]:
    digest = hashlib.shake_256(f"everstep permutation 1 seed {seed} epoch {epoch}".encode()).digest(8 * rounds)
    return [np.uint64(int.from_bytes(digest[start : start + 8], "little")) for start in range(0, 8 * rounds, 8)]


def _bounds(where: slice, n: int) -> tuple[int, int, int]:
    start = 0 if where.start is None else operator.index(where.start)
    stop = n if where.stop is None else operator.index(where.stop)
    step = 1 if where.step is None else operator.index(where.step)
    if step < 1:
        raise IndexError(f"a slice with step {step} of a permutation: steps are positive")
    if not (0 <= start <= n and 0 <= stop <= n):
        raise IndexError(f"slice [{start}:{stop}] of a permutation of {n} numbers")
    return start, max(start, stop), step


def _hash(source: Numbers, size: np.uint64, key: np.uint64, scratch: Numbers) -> None:
    """A keyed hash of each number into scratch[0], brought below `size` by Lemire's multiplication, not a division."""
    out, high = scratch
    np.add(source, key, out=out)
    out *= _MULTIPLIERS[0]
    np.right_shift(out, _HALF, out=high)
    out ^= high
    out *= _MULTIPLIERS[1]
    out >>= _HALF
    out *= size
    out >>= _HALF
