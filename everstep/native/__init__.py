"""Door 1, the native loop: a few changed lines make a plain PyTorch loop elastic.

    loader = everstep.DataLoader(dataset, batch_size=32, shuffle=True)
    model = everstep.DistributedDataParallel(model)
    trainer = everstep.ElasticTrainer(model, loader)
    optimizer = trainer.prepare(optimizer)
    for epoch in trainer.epochs(10):
        for inputs, targets in loader:
            with trainer.step():
                loss_fn(model(inputs), targets).backward()
                optimizer.step()

Built on the engine alone. A global batch is the same micro-batches, whatever the number of workers; the body runs once
for each micro-batch that this worker owns; optimizer.step() acts with the last one, on the mean over all
micro-batches."""

from everstep.engine.data_parallel import DistributedDataParallel
from everstep.native.digest import weights_digest
from everstep.native.group import init_process_group, reduce
from everstep.native.trainer import ElasticTrainer

__all__ = ["DistributedDataParallel", "ElasticTrainer", "init_process_group", "reduce", "weights_digest"]
