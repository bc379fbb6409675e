"""What a worker finds out about its own state."""

from __future__ import annotations

import torch
from torch import nn

from everstep.engine.fixed_world import LoneMembership
from everstep.engine.state_room import in_pages
from everstep.engine.step import Engine
from everstep.ipc.progress_page import ProgressPage
from everstep.native import ElasticTrainer

WIDTH = 300  # a weight of 360 kB: large


def test_from_its_third_step_on_a_worker_shows_how_much_memory_a_newcomer_needs() -> None:
    board = ProgressPage()
    engine = Engine(lambda board, closed: LoneMembership(), board)
    model = nn.Linear(WIDTH, WIDTH)
    trainer = ElasticTrainer(model, micro_batches=1, engine=engine)
    optimizer = trainer.prepare(torch.optim.Adam(model.parameters()))
    shown = []
    for _ in trainer.micro_batches(steps=3):
        with trainer.step():
            model(torch.ones(1, WIDTH)).sum().backward()
            optimizer.step()
        shown.append(board.progress.state_bytes)
    engine.close()
    assert shown == [0, 0, 3 * in_pages(WIDTH * WIDTH * 4)]  # the weight and its two moments
