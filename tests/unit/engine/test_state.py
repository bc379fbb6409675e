"""State as plain data: it comes back as it was, and a changed bit does not go unseen."""

from __future__ import annotations

import collections
import json
import os
import socket

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everstep.engine import shared_memory, sockets
from everstep.engine.state import checksum, decode, encode, tensor_sum
from everstep.errors import UsageError

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.integers() | st.text(), inner),
)


@given(plain)
def test_plain_values_come_back_as_they_were(value: object) -> None:
    tensors: list[torch.Tensor] = []
    skeleton = json.loads(json.dumps(encode(value, tensors)))

    assert decode(skeleton, tensors) == value


def test_optimizers_and_schedulers_come_back_as_they_were() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 3, 3])
    weight.sum().backward()
    optimizer.step()
    for state in (optimizer.state_dict(), scheduler.state_dict(), {"c": collections.Counter("aab")}):
        tensors: list[torch.Tensor] = []
        back = decode(json.loads(json.dumps(encode(state, tensors))), tensors)
        assert str(back) == str(state)


def test_what_cannot_be_sent_is_named() -> None:
    with pytest.raises(UsageError, match=r"state\['a'\]\[1\] is a builtins.object"):
        encode({"a": [1, object()]}, [])


@given(st.integers(0, 200_000), st.data())
def test_any_flipped_bit_changes_the_sum(size: int, data: st.DataObject) -> None:
    tensor = torch.zeros(size + 1, dtype=torch.uint8)
    before = tensor_sum(tensor)

    tensor[data.draw(st.integers(0, size))] ^= 1 << data.draw(st.integers(0, 7))

    assert tensor_sum(tensor) != before


def test_the_checksum_covers_skeleton_and_shape() -> None:
    one, other = torch.zeros(2, 3), torch.zeros(3, 2)

    assert checksum({"a": 1}, [tensor_sum(one)]) != checksum({"a": 2}, [tensor_sum(one)])
    assert tensor_sum(one) != tensor_sum(other)


def test_a_neighbor_reads_a_block() -> None:
    block = shared_memory.SharedBlock(4)
    block.bytes[:] = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)

    assert shared_memory.can_open(os.getpid(), block.descriptor, bytes([1, 2, 3, 4]))
    assert not shared_memory.can_open(os.getpid(), block.descriptor, bytes([9, 9]))
    assert not shared_memory.can_open(1 << 22, block.descriptor, b"")


def test_only_the_sockets_of_the_group_are_cut() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as ours,
        socket.create_server(("127.0.0.1", 0)) as others,
        socket.create_connection(ours.getsockname()) as mine,
        socket.create_connection(others.getsockname()) as foreign,
        ours.accept()[0],
        others.accept()[0] as far,
    ):
        held = sockets.hold(ours.getsockname(), set())
        sockets.cut(held)
        assert mine.recv(1) == b""
        far.sendall(b"x")
        assert foreign.recv(1) == b"x"
        assert ours.getsockname() in sockets.listeners()
        for sock in held:
            sock.close()
