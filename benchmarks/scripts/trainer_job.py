"""One model and its data, trained three ways: by a plain DDP loop, by Lightning, by our Trainer.

Each worker notifies the benchmark at its socket when it begins the first batch of a round, and waits there for its
system's turn. Nothing else in the loops is for the measurement.

    python trainer_job.py plain|lightning|trainer SOCKET BATCHES_PER_ROUND"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WORKERS, BATCH, WIDTH, LAYERS = 2, 192, 512, 4  # batch: of one worker
SAMPLES = 200 * WORKERS * BATCH
ENDLESS = 1_000_000  # batches


class Turns:
    """Of this worker's system."""

    def __init__(self, path: str, batches_per_round: int) -> None:
        self._batches_per_round = batches_per_round
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)

    def batch(self, number: int) -> None:
        if number % self._batches_per_round == 0:
            self._socket.sendall(b".")
            if not self._socket.recv(1):
                os._exit(0)


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES // 100, WIDTH, generator=generator).repeat(100, 1)
    return TensorDataset(inputs, torch.randint(10, (SAMPLES,), generator=generator))


def make_model() -> nn.Module:
    torch.manual_seed(0)
    hidden = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, 10))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def plain(turns: Turns) -> None:
    dist.init_process_group("gloo")
    data = make_data()
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = nn.parallel.DistributedDataParallel(make_model())
    optimizer = make_optimizer(model)
    number = 0
    for epoch in range(ENDLESS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            turns.batch(number)
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            number += 1


def lightning(turns: Turns) -> None:
    """Without log, progress bar, summary and checkpoints, for its best speed."""
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            turns.batch(self.global_step)
            inputs, targets = batch
            return nn.functional.cross_entropy(self.model(inputs), targets)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.model)

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=WORKERS,
        strategy="ddp",
        max_steps=ENDLESS,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(Module(), DataLoader(make_data(), batch_size=BATCH, shuffle=True))


def trainer(turns: Turns) -> None:
    """With its defaults: exact, with reports, display and TensorBoard files."""
    from everstep import pytorch

    class Trial(pytorch.PyTorchTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            self.context = context
            self.model = context.wrap_model(make_model())
            self.optimizer = context.wrap_optimizer(make_optimizer(self.model))

        def build_training_data_loader(self) -> DataLoader[Any]:
            return DataLoader(make_data(), batch_size=BATCH, shuffle=True)

        def build_validation_data_loader(self) -> DataLoader[Any]:
            return DataLoader(TensorDataset(*make_data()[:BATCH]), batch_size=BATCH)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> torch.Tensor:
            turns.batch(batch_idx)
            inputs, targets = batch
            loss = nn.functional.cross_entropy(self.model(inputs), targets)
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return loss

        def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
            inputs, targets = batch
            return {"validation_loss": nn.functional.cross_entropy(self.model(inputs), targets)}

    with pytorch.init(micro_batches=WORKERS) as context:
        pytorch.Trainer(Trial(context), context).fit(max_length=pytorch.Batch(ENDLESS))


def main() -> None:
    system, path, batches_per_round = sys.argv[1:]
    os.chdir(os.path.dirname(path))  # what a run leaves goes with the benchmark's own folder
    torch.set_num_threads(1)
    {"plain": plain, "lightning": lightning, "trainer": trainer}[system](Turns(path, int(batches_per_round)))


if __name__ == "__main__":
    main()
