"""The training job, with a checkpoint after each step: checkpoint_job.py FOLDER and the arguments of train.py."""

from __future__ import annotations

import torch
from torch import nn
from train import arguments, batch, build, gated, make_optimizer, tell

import everstep

parser = arguments()
parser.add_argument("folder")
args = parser.parse_args()
model = everstep.DistributedDataParallel(build(args.hidden))
trainer = everstep.ElasticTrainer(model, micro_batches=args.micro_batches, seed=7)
optimizer = make_optimizer(args.optimizer, model)
optimizer = trainer.prepare(optimizer)
loss_fn = nn.CrossEntropyLoss()
with everstep.Checkpointer(args.folder, keep_latest=None) as checkpointer:
    for micro_batch in gated(trainer.micro_batches(steps=args.steps)):
        with trainer.step():
            inputs, targets = batch(micro_batch.step, micro_batch.index)
            optimizer.zero_grad()
            loss_fn(model(inputs), targets).backward()
            optimizer.step()
        if trainer.num_steps > micro_batch.step:
            state = {"model": model.module, "optimizer": optimizer, "step": torch.tensor(trainer.num_steps)}
            checkpointer.save(trainer.num_steps, state)
tell(model.module, optimizer, trainer)
