"""Where gradients live: each parameter has a place of its own, and nothing but that."""

from __future__ import annotations

from functools import reduce
from operator import add

import pytest
import torch
from torch import nn

from everstep.engine.buckets import BUCKET_BYTES, MANY, Flats, lay_out
from everstep.engine.fixed_world import LoneMembership
from everstep.engine.pulse import STEPS, Header, in_order, total_weight
from everstep.engine.step import Engine
from everstep.ipc.progress_page import ProgressPage
from everstep.native import ElasticTrainer

KINDS = [((3, 5), torch.float32), ((16,), torch.float64), ((33,), torch.float32), ((2, 2, 2), torch.bfloat16)]


@pytest.mark.parametrize("is_private", [False, True])
def test_parameters_in_several_buckets_do_not_share_memory(is_private: bool) -> None:
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


@pytest.mark.parametrize("num_parameters", [1, 100, 5_000])
def test_a_large_model_has_no_more_than_so_many_buckets(num_parameters: int) -> None:
    parameters = [nn.Parameter(torch.empty(1 << 20, device="meta")) for _ in range(num_parameters)]  # 4 MiB each
    buckets = lay_out(parameters).buckets
    assert len(buckets) <= 2 * MANY
    assert len(buckets) >= min(num_parameters, MANY)
    assert sum(bucket.numel for bucket in buckets) == num_parameters << 20


def test_a_model_of_several_buckets_gets_the_mean_gradients_of_plain_torch() -> None:
    model = nn.ParameterList([torch.zeros(BUCKET_BYTES // 4), torch.zeros(3), torch.zeros(2, dtype=torch.float64)])
    trainer = ElasticTrainer(
        model, micro_batches=3, engine=Engine(lambda board, closed: LoneMembership(), ProgressPage())
    )
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=1.0))

    for micro_batch in trainer.micro_batches(steps=1):
        with trainer.step(weight=micro_batch.index + 1):
            sum((number + 1.0) * (micro_batch.index + 1) * each.sum() for number, each in enumerate(model)).backward()
            optimizer.step()

    mean = (1 * 1 + 2 * 2 + 3 * 3) / (1 + 2 + 3)
    for number, each in enumerate(model):
        assert torch.allclose(each, torch.full_like(each, -(number + 1) * mean)), f"parameter {number}"


def test_weights_add_up_to_the_same_bits_alone_and_together() -> None:
    weights = tuple(0.1 * (number + 1) for number in range(7))
    headers = [
        Header(
            generation=1, step=0, kind=STEPS, weights=tuple(w if n % 2 == rank else -1.0 for n, w in enumerate(weights))
        )
        for rank in range(2)
    ]

    assert total_weight(headers) == in_order(weights) == reduce(add, weights)


def test_alone_it_trains_as_plain_torch_does_with_buckets_of_two_kinds() -> None:
    def build() -> nn.ParameterList:
        torch.manual_seed(0)
        kinds = [torch.float32, torch.float64, torch.float32]
        return nn.ParameterList(nn.Parameter(torch.randn(3, 4, dtype=kind)) for kind in kinds)

    def loss(model: nn.ParameterList, step: int) -> torch.Tensor:
        return sum((number + step + 1) * p.double().square().sum() for number, p in enumerate(model))  # type: ignore[return-value]

    plain, ours = build(), build()
    optimizer = torch.optim.SGD(plain.parameters(), lr=1e-3)
    for step in range(3):
        optimizer.zero_grad()
        loss(plain, step).backward()
        optimizer.step()
    engine = Engine(lambda board, on_closed: LoneMembership(), ProgressPage())
    trainer = ElasticTrainer(ours, micro_batches=1, engine=engine)
    bound = trainer.prepare(torch.optim.SGD(ours.parameters(), lr=1e-3))
    for micro_batch in trainer.micro_batches(steps=3):
        with trainer.step():
            loss(ours, micro_batch.step).backward()
            bound.step()
    engine.close()
    assert all(torch.equal(one, other) for one, other in zip(plain, ours, strict=True))
