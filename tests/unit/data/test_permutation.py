"""The shuffle that is never written down: a bijection, the same everywhere for ever, and as good as random."""

from __future__ import annotations

import collections
import hashlib
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from everstep.data.permutation import BLOCK, LARGEST, ROUNDS, Permutation
from everstep.errors import UsageError
from lab.chi_squared import SURPRISE, differences, p_value, together

AWKWARD = (1, 2, 3, 5, 17, 997, 1023, 1024, 1025, 65_535, 65_537, 2**17 + 1, 1_000_003)
TALL = (131_071, 2**18 - 1, 2**18, 2**18 + 1, 1_000_003)  # enough positions for the checks of one epoch


def reference(n: int, seed: int, epoch: int, position: int, rounds: int) -> int:
    """The definition, one number at a time in Python's own integers."""
    digest = hashlib.shake_256(f"everstep permutation 1 seed {seed} epoch {epoch}".encode()).digest(8 * rounds)
    rows = next(a for a in itertools.count(math.isqrt(n)) if a * a >= n)
    columns = -(-n // rows)
    value = position
    while True:
        row, column = divmod(value, columns)
        for index in range(rounds):
            key = int.from_bytes(digest[8 * index : 8 * index + 8], "little")
            hashed = ((column, row)[index % 2] + key) * 0xBF58476D1CE4E5B9 % 2**64
            hashed = (hashed ^ (hashed >> 32)) * 0x94D049BB133111EB % 2**64 >> 32
            if index % 2:
                column = (column + (hashed * columns >> 32)) % columns
            else:
                row = (row + (hashed * rows >> 32)) % rows
        value = row * columns + column
        if value < n:
            return value


@pytest.mark.parametrize("n", AWKWARD)
def test_every_number_comes_once(n: int) -> None:
    assert np.array_equal(np.sort(Permutation(n, seed=3, epoch=1)[:]), np.arange(n))


@pytest.mark.parametrize(
    ("n", "seed", "epoch", "first"),
    [
        (1, 0, 0, [0]),
        (2, 0, 0, [0, 1]),
        (10, 0, 0, [0, 3, 2, 8, 5]),
        (1000, 7, 3, [82, 915, 187, 752, 354]),
        (1_000_003, 0, 0, [357687, 926340, 708054, 180241, 65697]),
        (10**9, 42, 5, [669452670, 404773128, 645291840, 178504075, 6684584]),
        (
            LARGEST,
            -1,
            2**40,
            [1505047039948635013, 1607786416280624526, 1778582520879699336, 1263872305530152071, 3939507131656004289],
        ),
    ],
)
def test_the_numbers_never_change(n: int, seed: int, epoch: int, first: list[int]) -> None:
    assert Permutation(n, seed, epoch)[: min(n, 5)].tolist() == first


@given(n=st.integers(1, LARGEST), seed=st.integers(), epoch=st.integers(0), data=st.data())
def test_the_vectorised_network_is_the_definition(n: int, seed: int, epoch: int, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, n - 1))
    rounds = 24 if n <= 2**8 else 12 if n <= 2**16 else 6
    assert Permutation(n, seed, epoch)[position] == reference(n, seed, epoch, position, rounds)


@given(n=st.integers(1, LARGEST), seed=st.integers(), data=st.data())
def test_the_inverse_finds_the_position(n: int, seed: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    permutation = Permutation(n, seed)
    values = permutation.at(positions)
    assert all(0 <= value < n for value in values.tolist())
    assert permutation.inverse(values).tolist() == positions
    assert permutation.at(permutation.inverse(positions)).tolist() == positions


@given(n=st.integers(1, 3 * BLOCK), data=st.data())
def test_a_slice_is_its_positions_one_by_one(n: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(0, n))
    step = data.draw(st.integers(1, n))
    permutation = Permutation(n, seed=1)
    expected = permutation.at(np.arange(n))[start:stop:step]
    assert np.array_equal(permutation[start:stop:step], expected)


def test_a_table_of_positions_keeps_its_shape() -> None:
    permutation = Permutation(1000, seed=1)
    table = np.arange(60).reshape(3, 4, 5).transpose(2, 0, 1)
    assert np.array_equal(permutation.at(table), permutation[:][table])
    assert np.array_equal(permutation.inverse(permutation.at(table)), table)


def test_a_billion_is_sampled_without_being_written_down() -> None:
    permutation = Permutation(10**9, seed=5, epoch=2)
    positions = np.arange(0, 10**9, 997)
    values = permutation.at(positions)
    assert np.array_equal(permutation.inverse(values), positions)
    assert len(np.unique(values)) == len(values)
    assert p_value(np.bincount(values * 4096 // 10**9, minlength=4096), 4095) > SURPRISE
    assert together(positions, values, 10**9) > SURPRISE
    first = permutation[: 2**20]
    assert min(differences(first, 10**9, lag) for lag in (1, 2, 31_622, 31_623, 31_624, 63_246)) > SURPRISE


def test_an_empty_one_has_nothing() -> None:
    assert len(Permutation(0)) == 0
    assert Permutation(0)[:].tolist() == []
    assert Permutation(0).inverse([]).tolist() == []


@pytest.mark.parametrize("where", [-1, 10, 2**70, slice(-1, 5), slice(0, 11), slice(9, 0, -1)])
def test_what_is_outside_is_an_error(where: int | slice) -> None:
    with pytest.raises(IndexError, match="of a permutation"):
        Permutation(10)[where]


def test_values_that_are_not_there_are_an_error() -> None:
    with pytest.raises(IndexError, match="value 10 of a permutation of 10 numbers"):
        Permutation(10).inverse([3, 10])
    with pytest.raises(TypeError, match="integers"):
        Permutation(10).at([0.5])


@pytest.mark.parametrize("n", [-1, LARGEST + 1])
def test_a_size_that_cannot_be_shuffled_is_an_error(n: int) -> None:
    with pytest.raises(UsageError, match=str(n)):
        Permutation(n)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_all_orders_of_a_few_are_equally_likely(n: int) -> None:
    epochs = max(2000, 10 * math.factorial(n))
    seen = collections.Counter(tuple(Permutation(n, seed=1, epoch=epoch)[:].tolist()) for epoch in range(epochs))
    counts = np.array([seen[order] for order in itertools.permutations(range(n))])
    assert p_value(counts, counts.size - 1) > SURPRISE


@pytest.mark.parametrize("n", [3, 17, 31, 32, 33, 61])
def test_every_sample_is_as_likely_in_every_place(n: int) -> None:
    table = np.zeros((n, n), dtype=np.int64)
    for epoch in range(30 * n):
        table[np.arange(n), Permutation(n, seed=2, epoch=epoch)[:]] += 1
    assert p_value(table, (n - 1) ** 2) > SURPRISE


def checks_of_an_epoch(values: NDArray[np.int64]) -> dict[str, float]:
    """The probability, by check, that a random order looks at least as odd."""
    n = len(values)
    rows = math.isqrt(n - 1) + 1
    columns = -(-n // rows)
    places = np.argsort(values)
    lags = {1, 2, rows, columns, rows + 1, columns - 1, 2 * columns, 3 * columns}
    found = {f"values {lag} apart": differences(values, n, lag) for lag in lags}
    found |= {f"places {lag} apart": differences(places, n, lag) for lag in lags}
    found["place and value"] = together(np.arange(n), values, n)
    found["neighbors"] = together(values[:-1], values[1:], n)
    found["the first 2 %"] = p_value(np.bincount(values[: n // 50] % 97, minlength=97), 96)
    return found


@pytest.mark.parametrize("n", TALL)
def test_an_epoch_looks_random(n: int) -> None:
    found = checks_of_an_epoch(Permutation(n, seed=11, epoch=4)[:])
    assert {check: p for check, p in found.items() if p < SURPRISE} == {}


@pytest.mark.parametrize("n", TALL)
def test_the_checks_pass_what_is_random(n: int) -> None:
    found = checks_of_an_epoch(np.random.default_rng(12).permutation(n))
    assert {check: p for check, p in found.items() if p < SURPRISE} == {}


@pytest.mark.parametrize("rounds", [3, 4])
@pytest.mark.parametrize("n", TALL)
def test_the_checks_catch_too_few_rounds(n: int, rounds: int) -> None:
    found = checks_of_an_epoch(Permutation(n, seed=11, epoch=4, rounds=rounds)[:])
    assert any(p < SURPRISE for p in found.values())


@pytest.mark.parametrize("n", TALL)
def test_two_epochs_and_two_seeds_have_nothing_in_common(n: int) -> None:
    epoch = Permutation(n, seed=0, epoch=1)[:]
    for other in (Permutation(n, seed=0, epoch=2)[:], Permutation(n, seed=1, epoch=1)[:], Permutation(n, 1, 0)[:]):
        assert together(epoch, other, n) > SURPRISE
        apart = (epoch - other) % n
        assert p_value(np.bincount(apart * 256 // n, minlength=256), 255) > SURPRISE
        assert np.count_nonzero(apart == 0) < 15  # Poisson with mean 1


def rows_apart(n: int, epochs: int, rounds: int | None) -> float:
    """The check of values a row apart, over many epochs of a small dataset."""
    columns = -(-n // (math.isqrt(n - 1) + 1))
    apart = np.zeros(n, dtype=np.int64)
    for epoch in range(epochs):
        values = Permutation(n, 7, epoch, rounds=rounds)[:]
        apart += np.bincount((values[columns:] - values[:-columns]) % n, minlength=n)
    assert apart[0] == 0
    return p_value(apart[1:], n - 2)


def test_thousands_of_epochs_of_a_small_dataset_leave_no_trace() -> None:
    assert rows_apart(300, 5000, rounds=None) > SURPRISE
    assert rows_apart(300, 5000, rounds=ROUNDS) < SURPRISE
