"""Any state comes back as it was; what is loaded is memory of our own."""

from __future__ import annotations

import collections
import copy
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everstep
from everstep.checkpoint.state_image import DTYPES, take_apart
from everstep.errors import UsageError

dtypes = st.sampled_from([*DTYPES, torch.complex128])
shapes = st.lists(st.integers(0, 4), max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape, dtype = draw(shapes), draw(dtypes)
    size = torch.Size(shape).numel() * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype)
    raw = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if dtype is torch.bool:
        raw = bytearray(each & 1 for each in raw)
    tensor = torch.frombuffer(raw, dtype=dtype).reshape(shape)
    return tensor.t() if tensor.dim() == 2 and draw(st.booleans()) else tensor


micro_batches = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | tensors()
)
states = st.recursive(
    micro_batches,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=4)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4).map(collections.OrderedDict)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and raw(one) == raw(other)
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def raw(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(states)
def test_any_nesting_comes_back_as_it_was(state: Any) -> None:
    with everstep.Checkpointer(f"memory://{uuid.uuid4()}") as checkpointer:
        checkpointer.save(1, state, wait=True)
        assert same(checkpointer.load(), state)
        checkpointer.delete()


@pytest.fixture
def checkpointer(tmp_path: Path) -> Iterator[everstep.Checkpointer]:
    with everstep.Checkpointer(tmp_path / "ckpt") as each:
        yield each


def test_objects_with_a_state_dict_give_theirs(checkpointer: everstep.Checkpointer) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 3])
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    checkpointer.save(1, {"model": model, "optimizer": optimizer, "scheduler": scheduler}, wait=True)
    saved = copy.deepcopy(model.state_dict())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()

    state = checkpointer.load()
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])

    assert same(model.state_dict(), saved)
    assert state["model"]._metadata == saved._metadata  # type: ignore[attr-defined]


def test_random_generators_go_on_where_they_were(checkpointer: everstep.Checkpointer) -> None:
    torch_generator, python, numpy = torch.Generator(), random.Random(1), np.random.default_rng(1)
    legacy = np.random.RandomState(1)
    checkpointer.save(
        1, {"torch": torch_generator, "python": python, "numpy": numpy, "legacy": legacy.get_state()}, wait=True
    )
    expected = (torch.rand(3, generator=torch_generator), python.random(), numpy.random(), legacy.random())

    state = checkpointer.load()
    torch_generator.set_state(state["torch"])
    python.setstate(state["python"])
    numpy.bit_generator.state = state["numpy"]
    legacy.set_state(state["legacy"])

    again = (torch.rand(3, generator=torch_generator), python.random(), numpy.random(), legacy.random())
    assert torch.equal(again[0], expected[0]) and again[1:] == expected[1:]


def test_what_is_loaded_is_memory_of_its_own(checkpointer: everstep.Checkpointer) -> None:
    state = {"a": torch.zeros(8), "b": torch.zeros(8)}
    checkpointer.save(1, state, wait=True)
    one, other = checkpointer.load(), checkpointer.load()
    one["a"].add_(1)

    assert not one["b"].any() and not other["a"].any() and not checkpointer.load()["a"].any()
    assert one["a"].untyped_storage().nbytes() == 32


def test_training_may_change_the_state_as_soon_as_save_returns(checkpointer: everstep.Checkpointer) -> None:
    state = {"w": torch.zeros(1000)}
    for step in range(5):
        state["w"].fill_(step)
        checkpointer.save(step, state)
    state["w"].fill_(-1)
    checkpointer.wait()

    assert checkpointer.load()["w"].unique().tolist() == [4]


def test_tied_weights_are_kept_once_and_stay_tied() -> None:
    weight = torch.randn(4, 4)
    contents = take_apart({"in": weight, "out": weight, "part": weight[:2], "turned": weight.t()})

    assert [meta.name for meta in contents.metas] == ["in", "part", "turned"]


def test_views_of_one_memory_that_hold_other_values_are_not_taken_for_tied(checkpointer: everstep.Checkpointer) -> None:
    plain = torch.tensor([1 + 2j, 3 - 4j])
    state = {"plain": plain, "conjugate": plain.conj(), "negative": torch._neg_view(plain)}
    checkpointer.save(1, state, wait=True)

    saved = checkpointer.load()
    assert {name: saved[name].tolist() for name in state} == {name: state[name].tolist() for name in state}


def test_names_are_readable_and_different() -> None:
    contents = take_apart({"a": {"b": torch.ones(1)}, "a.b": torch.ones(1), "c": [torch.ones(1), (torch.ones(1),)]})

    assert [meta.name for meta in contents.metas] == ["a.b", "a.b~2", "c.0", "c.1.0"]


def test_what_cannot_be_saved_is_named_at_once(checkpointer: everstep.Checkpointer) -> None:
    with pytest.raises(UsageError, match=r"state\['x'\] is a builtins.object"):
        checkpointer.save(1, {"x": object()})
    with pytest.raises(UsageError, match="tensor s is torch.sparse_coo"):
        checkpointer.save(1, {"s": torch.eye(3).to_sparse()})
    with pytest.raises(UsageError, match="tensor m is meta"):
        checkpointer.save(1, {"m": torch.empty(3, device="meta")})
    with pytest.raises(UsageError, match=r"state\['x'\] is a numpy array of <U1"):
        checkpointer.save(1, {"x": np.array(["a"])})
    with pytest.raises(UsageError, match=r"state\['x'\] is a numpy array of >i4"):
        checkpointer.save(1, {"x": np.array([1], dtype=">i4")})
    with pytest.raises(UsageError, match=r"state\['x'\] is a numpy.ma"):
        checkpointer.save(1, {"x": np.ma.array([1.0, 2.0], mask=[0, 1])})
    with pytest.raises(UsageError, match=r"key frozenset\(\{1\}\) is a builtins.frozenset"):
        checkpointer.save(1, {"x": {frozenset([1]): 2}})
    with pytest.raises(UsageError, match="a tensor is the key"):
        checkpointer.save(1, {torch.ones(1): 2})
    state: dict[str, Any] = {}
    state["itself"] = state
    with pytest.raises(UsageError) as refused:
        checkpointer.save(1, state)
    assert refused.value.code == "state-nested-too-deeply"
