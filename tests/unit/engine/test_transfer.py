"""A state on its way: room for it, and whether it is the one that was sent."""

from __future__ import annotations

import io
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from everstep.engine.group import TAG_TRANSFER
from everstep.engine.transfer import _aside, receive_state, send_state
from everstep.errors import StateMismatch

STATE = {"small": torch.arange(3), "step": 7, "large": torch.linspace(0.0, 1.0, 100_000)}


class Post:
    """A group of a sender and a receiver: what the one has sent lies here until the other receives it."""

    def __init__(self) -> None:
        self.letters: dict[int, deque[Tensor]] = defaultdict(deque)

    def send(self, tensor: Tensor, peer: int, tag: int) -> None:
        self.letters[tag].append(tensor.clone())

    def recv(self, tensor: Tensor, peer: int, tag: int) -> None:
        tensor.copy_(self.letters[tag].popleft())

    def wait(self, works: Sequence[None]) -> None:
        pass


@pytest.fixture
def post() -> Any:
    sent = Post()
    send_state(STATE, sent, receivers=[1], worker="w0")  # type: ignore[arg-type]
    return sent


def test_a_state_arrives_as_it_was_sent(post: Any) -> None:
    received = receive_state(post, sender=0, worker="w1")

    assert received["step"] == 7
    assert all(torch.equal(received[name], STATE[name]) for name in ("small", "large"))  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [0, 1], ids=["small", "large"])
def test_a_state_with_a_flipped_bit_is_refused(post: Any, number: int) -> None:
    post.letters[TAG_TRANSFER + 2][number][5] ^= 4

    with pytest.raises(StateMismatch, match="w1 received a state with checksum .*, but w0 sent"):
        receive_state(post, sender=0, worker="w1")


def test_what_was_received_can_be_saved_and_each_tensor_by_itself() -> None:
    shapes = [([300, 300], torch.float32), ([], torch.int64), ([3], torch.float32), ([200_000], torch.int64)]
    tensors, packed = _aside(shapes)

    assert [(list(t.shape), t.dtype) for t in tensors] == shapes
    assert packed.numel() == 8 + 12
    torch.save(tensors, io.BytesIO())
    alone = io.BytesIO()
    torch.save(tensors[0], alone)
    assert alone.tell() < 2 * 300 * 300 * 4
