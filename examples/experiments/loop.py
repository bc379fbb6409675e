"""Your own loop as a trial: it asks for its hyperparameters, and each report says whether to continue.

    everstep e create loop.yaml . --include ../data/fashion-mnist-8k.npz

Without a checkpoint, a trial that is paused begins again. docs/native_loop.md shows how to save before leaving."""

import torch
from images import build, load
from torch.nn import functional as F  # noqa: N812  its usual name
from torch.utils.data import DataLoader

import everstep


def main():
    hparams = everstep.get_hparams()
    if hparams["hidden"] < 2:
        raise everstep.InvalidHP("one hidden unit cannot tell ten classes apart")
    torch.manual_seed(0)
    model = build(hparams["hidden"])
    loader = DataLoader(load("train", 640), batch_size=16, shuffle=True)
    trainer = everstep.ElasticTrainer(model, loader, micro_batches=2)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=hparams["learning_rate"], momentum=0.9))
    images, labels = load("test").tensors

    for epoch in trainer.epochs(100):  # the search ends it earlier
        for inputs, targets in loader:
            with trainer.step():
                loss = F.cross_entropy(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with torch.no_grad():
            loss = F.cross_entropy(model(images), labels).item()
        if not everstep.report({"validation_loss": loss, "epochs": epoch + 1}, step=trainer.num_steps):
            break


if __name__ == "__main__":
    main()
