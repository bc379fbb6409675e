"""What is random while data are read depends on the place in the epoch alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset, default_collate

from everstep.data.loader import DataLoader
from everstep.engine.fixed_world import LoneMembership
from everstep.engine.step import Engine
from everstep.ipc.progress_page import ProgressPage
from everstep.native import ElasticTrainer


def collate_with_noise(samples: list[Any]) -> tuple[torch.Tensor, float]:
    (inputs,) = default_collate(samples)
    return inputs, torch.rand(()).item()


def noise_of_batches(num_workers: int) -> list[float]:
    loader = DataLoader(
        TensorDataset(torch.ones(24, 2)), batch_size=2, num_workers=num_workers, collate_fn=collate_with_noise
    )
    model = torch.nn.Linear(2, 1)
    engine = Engine(lambda board, closed: LoneMembership(), ProgressPage())
    trainer = ElasticTrainer(model, loader, micro_batches=2, engine=engine)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    drawn = []
    for inputs, noise in loader:
        drawn.append(noise)
        with trainer.step():
            model(inputs).sum().backward()
            optimizer.step()
    engine.close()
    return drawn


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_random_collate_fn_differs_by_batch_and_not_by_who_reads(num_workers: int) -> None:
    here = noise_of_batches(0)
    assert len(set(here)) == len(here) == 12
    assert noise_of_batches(num_workers) == here
