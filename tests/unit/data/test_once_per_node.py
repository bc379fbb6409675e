"""Data that processes share: what comes out is what went in, and what cannot be shared is refused."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import everstep
from everstep.data import shared_arrays
from everstep.errors import UsageError
from lab.refused import refused


def through(value: Any) -> Any:
    descriptor = shared_arrays.write(value)
    try:
        return shared_arrays.read(descriptor)
    finally:
        os.close(descriptor)


ARRAYS = {
    "numbers": numpy.arange(24.0).reshape(2, 3, 4),
    "by columns": numpy.asfortranarray(numpy.arange(6).reshape(2, 3)),
    "every other": numpy.arange(10, dtype=numpy.int16)[::2],
    "no dimension": numpy.array(3.5),
    "empty": numpy.zeros((0, 3), dtype=numpy.uint8),
    "texts": numpy.array(["a", "bcd"]),
    "times": numpy.array(["2024-05-01"], dtype="datetime64[D]"),
    "complex": numpy.array([1j, 2.0]),
    "other bytes": numpy.arange(3, dtype=">i4"),
}
TENSORS = {
    "numbers": torch.arange(24.0).view(2, 3, 4),
    "half": torch.tensor([1.5, 2.5], dtype=torch.bfloat16),
    "channels last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "a column": torch.arange(12).view(3, 4)[:, 1],
    "spread": torch.zeros(1).expand(4),
    "no dimension": torch.tensor(True),
    "empty": torch.zeros(0, 2),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_comes_back_as_it_was(name: str) -> None:
    array, found = ARRAYS[name], through(ARRAYS[name])
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert numpy.array_equal(found, array)
    assert found.flags.f_contiguous == array.copy("K").flags.f_contiguous
    assert found.flags.writeable


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_as_it_was(name: str) -> None:
    tensor, found = TENSORS[name], through(TENSORS[name])
    assert (found.dtype, found.shape, found.stride()) == (tensor.dtype, tensor.shape, tensor.clone().stride())
    assert torch.equal(found, tensor)


def test_what_holds_the_arrays_comes_back_too() -> None:
    shared = numpy.ones(3)
    value = {"a": (shared, [shared, 1, 2.5, "x", None, True, b"bytes"]), 7: {}, "nan": float("inf"), "n": numpy.int8(3)}
    found = through(value)
    assert found["a"][0] is found["a"][1][0], "an array that is there twice"
    assert found["a"][1][1:] == [1, 2.5, "x", None, True, b"bytes"]
    assert (found[7], found["nan"], found["n"], type(found["n"])) == ({}, float("inf"), 3, numpy.int8)
    assert list(found) == list(value)


def test_each_process_changes_its_own_copy() -> None:
    descriptor = shared_arrays.write(numpy.zeros(5000))
    first, second = shared_arrays.read(descriptor), shared_arrays.read(descriptor)
    first += 1
    assert first.sum() == 5000 and second.sum() == 0 and shared_arrays.read(descriptor).sum() == 0
    with pytest.raises(PermissionError):
        os.pwrite(descriptor, b"x", 0)
    os.close(descriptor)


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        [torch.utils.data.TensorDataset(torch.zeros(2))],
        {"x": numpy.array([object()])},
        numpy.ma.masked_array([1, 2], [True, False]),
        torch.zeros(2, requires_grad=True),
        torch.nn.Parameter(torch.zeros(2)),
        torch.eye(2).to_sparse(),
        {(1, 2): 3},
        numpy.random.RandomState(1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_shared_is_refused_with_its_place_and_the_way_out(value: Any) -> None:
    with refused("data-not-shareable", UsageError) as error:
        shared_arrays.write(value)
    assert error.value.hint


def draws(count: int) -> tuple[float, float, float]:
    return random.random(), float(numpy.random.random()), float(torch.rand(count)[0])


def test_elsewhere_it_is_called_with_streams_of_its_own() -> None:
    random.seed(1)
    expected = random.random()
    random.seed(1)
    first = everstep.once_per_node(draws, 1)
    assert random.random() == expected, "as if nothing had been loaded"
    assert everstep.once_per_node(draws, 1) == first
    assert everstep.once_per_node(draws, count=1) != first, "another call"
    assert everstep.once_per_node(str, Path("x")) == "x"


def closure() -> Callable[[], int]:
    number = random.random()
    return lambda: int(number)


@pytest.mark.parametrize(
    "load", [closure(), [].copy, functools.partial(draws, 1), 3], ids=["closure", "method", "partial", "number"]
)
def test_a_function_whose_result_may_differ_from_process_to_process_is_refused(load: Any) -> None:
    with refused("data-loader-not-a-function", UsageError):
        everstep.once_per_node(load)


def test_an_argument_that_has_no_name_across_processes_is_refused() -> None:
    with refused("data-argument-unknown", UsageError):
        everstep.once_per_node(draws, object())
