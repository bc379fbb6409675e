"""How surprising a table of counts is: the probability that chance alone gives one at least as uneven."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

SURPRISE = 1e-6  # a true random permutation fails a check less often than this


def p_value(counts: NDArray[Any], freedom: int) -> float:
    """Of equally likely cells, by Wilson and Hilferty's approximation: good to a few percent at the tail used here."""
    expected = counts.sum() / counts.size
    statistic = float(((counts - expected) ** 2 / expected).sum())
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2))


def differences(values: NDArray[np.int64], n: int, lag: int, cells: int = 256) -> float:
    """Are values `lag` positions apart related?"""
    apart = (values[lag:] - values[:-lag]) % n
    return p_value(np.bincount(apart * cells // n, minlength=cells), cells - 1)


def together(first: NDArray[np.int64], second: NDArray[np.int64], n: int, cells: int = 64) -> float:
    """Does one value say anything about the other?"""
    table = np.bincount(first * cells // n * cells + second * cells // n, minlength=cells * cells)
    return p_value(table, (cells - 1) ** 2)
