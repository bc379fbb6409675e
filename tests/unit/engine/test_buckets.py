"""Where gradients live: each parameter has a place of its own, and nothing but that."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import everstep
from everstep.engine.buckets import BUCKET_BYTES, Flats, lay_out


@pytest.mark.parametrize("is_private", [False, True])
def test_parameters_in_several_buckets_do_not_share_memory(is_private):
    parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape, dtype in KINDS]
    parameters.append(nn.Parameter(torch.zeros(5, 7).t()))  # dense, but not in the usual order
    flats = Flats(lay_out(parameters, bucket_bytes=64), parameters, is_private=is_private)
    assert len(flats.buffers) > 3

    for number, view in enumerate(flats.views):
        view.fill_(number + 1)

    assert [view.unique().tolist() for view in flats.views] == [[n + 1.0] for n in range(len(parameters))]
    assert sum(buffer.numel() for buffer in flats.buffers) == sum(each.numel() for each in parameters)
    written = sorted(value for buffer in flats.buffers for value in buffer.double().tolist())
    assert written == sorted(float(n + 1) for n, each in enumerate(parameters) for _ in range(each.numel()))


KINDS = [((3, 5), torch.float32), ((16,), torch.float64), ((33,), torch.float32), ((2, 2, 2), torch.bfloat16)]


def test_a_model_of_several_buckets_gets_the_mean_gradients_of_plain_torch():
    model = nn.ParameterList([torch.zeros(BUCKET_BYTES // 4), torch.zeros(3), torch.zeros(2, dtype=torch.float64)])
    trainer = everstep.ElasticTrainer(model, leaves=3)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=1.0))

    for leaf in trainer.leaves(steps=1):
        with trainer.step(weight=leaf.index + 1):
            sum((number + 1.0) * (leaf.index + 1) * each.sum() for number, each in enumerate(model)).backward()
            optimizer.step()

    mean = (1 * 1 + 2 * 2 + 3 * 3) / (1 + 2 + 3)
    for number, each in enumerate(model):
        assert torch.allclose(each, torch.full_like(each, -(number + 1) * mean)), f"parameter {number}"
