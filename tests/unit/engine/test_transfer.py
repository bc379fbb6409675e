"""Room for a state that is on its way."""

from __future__ import annotations

import io

import torch

from everstep.engine.transfer import _aside


def test_what_was_received_can_be_saved_and_each_tensor_by_itself() -> None:
    shapes = [([300, 300], torch.float32), ([], torch.int64), ([3], torch.float32), ([200_000], torch.int64)]
    tensors, packed = _aside(shapes)

    assert [(list(t.shape), t.dtype) for t in tensors] == shapes
    assert packed.numel() == 8 + 12
    torch.save(tensors, io.BytesIO())
    alone = io.BytesIO()
    torch.save(tensors[0], alone)
    assert alone.tell() < 2 * 300 * 300 * 4
