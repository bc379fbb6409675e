"""Train a small classifier. Runs alone (python train.py), and on machines that come and go (everstep run -f job.yaml).

The data is made up: replace `made_up_data` by your data, and `model` by your model."""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import everstep


def made_up_data(num_samples: int, seed: int) -> TensorDataset:
    """Points of a plane in two classes: inside a circle, and outside of it."""
    points = torch.rand(num_samples, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return TensorDataset(points, (points.square().sum(dim=1) < 0.6).long())


def evaluate(model: nn.Module, held_out: TensorDataset) -> str:
    points, classes = held_out.tensors
    with torch.no_grad():
        outputs = model(points)
    loss = nn.functional.cross_entropy(outputs, classes).item()
    accuracy = (outputs.argmax(dim=1) == classes).float().mean().item()
    return f"loss {loss:.3f}, accuracy {accuracy:.3f} on {len(held_out)} held-out points"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--checkpoints", default="runs/checkpoints", help="a folder that all nodes see, or s3://…")
    parser.add_argument("--output", type=Path, default=Path("model.pt"))
    options = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    loader = DataLoader(made_up_data(4096, seed=1), batch_size=32, shuffle=True)
    held_out = made_up_data(1024, seed=2)
    # A global batch is eight times the loader's, whatever the number of workers: the result is the same, bit for bit.
    trainer = everstep.ElasticTrainer(model, loader, micro_batches=8)
    optimizer = trainer.prepare(torch.optim.Adam(model.parameters(), lr=options.learning_rate))
    state = {"model": model, "optimizer": optimizer, "trainer": trainer}
    with everstep.Checkpointer(options.checkpoints) as checkpointer:
        # For a restart of the whole job: a worker that joins others gets the state from them.
        if (saved := checkpointer.load()) is not None:
            for name, part in state.items():
                part.load_state_dict(saved[name])
            print(f"continuing after step {trainer.num_steps}, from {options.checkpoints}", flush=True)
        for epoch in trainer.epochs(options.epochs):
            for points, classes in loader:
                with trainer.step():
                    loss = nn.functional.cross_entropy(model(points), classes)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            checkpointer.save(trainer.num_steps, state)  # by all workers: each may write a share
            if trainer.rank == 0:  # `loss` is that of one micro-batch: say how good the model is on data of its own
                print(f"epoch {epoch + 1}: {evaluate(model, held_out)}, with {trainer.world_size} workers", flush=True)
    if trainer.rank == 0:
        torch.save(model.state_dict(), options.output)
        print(f"saved {options.output.resolve()}", flush=True)


if __name__ == "__main__":
    main()
