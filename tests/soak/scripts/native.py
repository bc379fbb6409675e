"""Door 1: the native loop."""

from __future__ import annotations

import logging

from task import (
    BATCH,
    MICRO_BATCHES,
    SAVE_EVERY,
    Net,
    Records,
    arguments,
    checkpoints,
    clip,
    dawdle,
    optimizers,
    tell,
    tell_result,
    tell_step,
)
from torch.optim.lr_scheduler import ExponentialLR

import everstep

args = arguments()
logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(message)s")
tell("started")
net = Net()
model = everstep.DistributedDataParallel(net)
loader = everstep.DataLoader(Records(), batch_size=BATCH, shuffle=True, num_workers=args.loaders, seed=args.seed)
trainer = everstep.ElasticTrainer(model, loader, micro_batches=MICRO_BATCHES, reduce=args.reduce, seed=args.seed)
learning, counting = optimizers(net)
scheduler = ExponentialLR(learning, 0.995)
(learning, counting), scheduler = trainer.prepare([learning, counting], scheduler)
parts = {"model": net, "learning": learning, "counting": counting, "scheduler": scheduler, "trainer": trainer}

with everstep.Checkpointer(checkpoints()) as checkpointer:
    if (saved := checkpointer.load()) is not None:
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        tell("resumed", step=trainer.num_steps)
    for _ in trainer.epochs(args.epochs):
        for inputs, targets, indices in loader:
            step = trainer.num_steps
            dawdle()
            with trainer.step():
                learning.zero_grad()
                counting.zero_grad()
                loss = net.loss(model(inputs, indices), targets)
                dawdle()
                loss.backward()
                dawdle()
                clip(net.learning())
                learning.step()
                counting.step()
                scheduler.step()
            if trainer.num_steps > step:
                tell_step(net, trainer.num_steps, args.epochs)
                if trainer.num_steps % SAVE_EVERY == 0:
                    checkpointer.save(trainer.num_steps, parts)
            dawdle()
    checkpointer.save(trainer.num_steps, parts)
tell_result(net, trainer.num_steps, args.epochs)
