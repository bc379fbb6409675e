"""A trial of a search by a loop of the script's own: native, controller, or a plain script with one process. Emits what
everstep.report has answered, by step, and the weights at the end.

Native: saves on leaving, and continues from there. A gate `report STEP` is before each report."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from gates import pass_gate
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import everstep
from everstep.events import emit


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=["native", "controller", "plain"])
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if everstep.get_hparams().get("lr", 0.1) <= 0:
        raise everstep.InvalidHP("lr must be above 0")
    torch.manual_seed(3)
    model = nn.Linear(4, 1)
    {"native": native, "controller": controller, "plain": plain}[args.way](model, args)
    emit("result", weights_digest=everstep.weights_digest(model))


def tell(model: nn.Module, step: int) -> bool:
    """Whether to go on."""
    pass_gate(f"report {step}")
    loss = float(model(torch.ones(1, 4)).pow(2).sum())
    goes_on = everstep.report({"loss": loss, "other": step}, step=step)
    emit("answered", step=step, goes_on=goes_on, loss=loss)
    return goes_on


def samples() -> TensorDataset:
    return TensorDataset(torch.randn(48, 4, generator=torch.Generator().manual_seed(5)))


def native(model: nn.Module, args: argparse.Namespace) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(samples(), batch_size=4, shuffle=True)
    trainer = everstep.ElasticTrainer(model, loader, micro_batches=2, seed=7)
    optimizer = trainer.prepare(optimizer)
    checkpointer = everstep.Checkpointer(args.folder) if args.folder else None
    if checkpointer is not None and (saved := checkpointer.load()) is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        trainer.load_state_dict(saved["loop"])

    def save() -> None:
        if checkpointer is not None:
            state = {"model": model, "optimizer": optimizer, "loop": trainer.state_dict()}
            checkpointer.save(trainer.num_steps, state, wait=True)

    trainer.on_leave(save)
    for _epoch in trainer.epochs(6):
        for (batch,) in loader:
            with trainer.step():
                loss = model(batch).pow(2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        if not tell(model, trainer.num_steps):
            break


class Leased(Dataset[Any]):
    def __init__(self, service: everstep.RecordIndexService) -> None:
        self.service, self.data = service, samples()

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, _: int) -> Any:
        return self.data[self.service.fetch_record_index()][0]


def controller(model: nn.Module, args: argparse.Namespace) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    service = everstep.RecordIndexService(batch_size=8, dataset_size=48, num_epochs=6, shuffle=True)
    ours = everstep.AllReduceController(service)
    ours.set_broadcast_model(model)
    ours.set_broadcast_optimizer(optimizer)

    @ours.elastic_run
    def train(batch: Any) -> None:
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()

    with ours.scope():
        before = 0
        for batch in DataLoader(Leased(service), batch_size=8):
            train(batch)
            if ours.num_steps % 6 == 0 and ours.num_steps > before:
                before = ours.num_steps
                if not tell(model, before):
                    break


def plain(model: nn.Module, args: argparse.Namespace) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = samples().tensors[0]
    for step in range(1, 100):
        optimizer.zero_grad()
        model(data).pow(2).mean().backward()
        optimizer.step()
        if step % 6 == 0 and not tell(model, step):
            break
        if step % 6 == 0:
            print(f"step {step} val_loss={float(model(data).pow(2).mean()):.6f}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("EVERSTEP_TENSORBOARD", "off")
    main()
