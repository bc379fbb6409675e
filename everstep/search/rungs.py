"""Rungs and brackets of a halving search, counted with whole numbers and fractions.

Floating-point logarithms are sometimes slightly too small (log 1000 to the base 10 gives 2.9999999999999996), and a
search that cuts them off has one rung too few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

MODES = ("standard", "aggressive", "conservative")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bracket:
    """One of the halvings of a search. `lengths`: the total length of each rung. `num_at_once`: trials at a time."""

    lengths: tuple[int, ...]
    num_trials: int
    num_at_once: int
    num_at_start: int


def num_powers(divisor: Fraction, number: int, most: int) -> int:
    """How many times `number` can be divided, at most `most`."""
    times, power = 0, divisor
    while times < most and power <= number:
        times, power = times + 1, power * divisor
    return times


def rung_lengths(num_rungs: int, divisor: Fraction, max_length: int) -> tuple[int, ...]:
    return tuple(max(1, int(max_length / divisor ** (num_rungs - 1 - rung))) for rung in range(num_rungs))


def bracket_rungs(mode: str, max_rungs: int, divisor: Fraction, max_length: int, max_trials: int) -> tuple[int, ...]:
    """The number of rungs of each bracket, the largest first."""
    most = 1 + num_powers(divisor, min(max_length, max_trials), max_rungs - 1)
    least = {"aggressive": most, "standard": (most - 1) // 2 + 1, "conservative": 1}[mode]
    return tuple(range(most, least - 1, -1))


def bracket_trials(max_trials: int, divisor: Fraction, rungs: Sequence[int]) -> tuple[int, ...]:
    """Each bracket costs about the same: weight divisor^(rungs-1) / rungs. The first gets what is left,
    or gives up what the others' minimum of one trial takes."""
    weights = [divisor ** (each - 1) / each for each in rungs]
    trials = [max(1, int(weight * max_trials / sum(weights))) for weight in weights]
    trials[0] = max(1, trials[0] + max_trials - sum(trials))
    return tuple(trials)


def bracket_concurrency(max_at_once: int, divisor: Fraction, trials: Sequence[int]) -> tuple[int, ...]:
    """Even shares, at least one each; 0 means as many as the last bracket has."""
    if max_at_once == 0:
        return (max(trials[-1], int(divisor)),) * len(trials)
    share, rest = divmod(max(max_at_once, len(trials)), len(trials))
    return tuple(share + (place < rest) for place in range(len(trials)))


def num_at_start(max_at_once: int, divisor: Fraction, num_rungs: int, max_trials: int) -> int:
    """0 means as many as it takes for one trial to reach the top."""
    return min(max_trials, max_at_once or max(1, int(divisor ** (num_rungs - 1))))


def survivors(num_trials: int, divisor: Fraction, num_rungs: int) -> tuple[int, ...]:
    """How many trials are at each rung of a halving search."""
    numbers = [num_trials]
    while len(numbers) < num_rungs:
        numbers.append(min(numbers[-1], max(1, int(numbers[-1] / divisor))))
    return tuple(numbers)
