"""Door 3: the controller, with shards that the coordinator leases."""

from __future__ import annotations

import logging

from task import (
    BATCH,
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
from torch import Tensor
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader

import everstep

args = arguments()
logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(message)s")
tell("started")
net = Net()
shards = everstep.ShardDataset(Records(), BATCH, args.epochs, shuffle=True, num_minibatches_per_shard=3, seed=args.seed)
loader = DataLoader(shards, batch_size=None, num_workers=args.loaders)
learning, counting = optimizers(net)
scheduler = ExponentialLR(learning, 0.995)
controller = everstep.AllReduceController(
    shards.service,
    backward_passes_per_step=1 if args.global_batches else 2,
    global_batch_num_per_step=args.global_batches,
)
controller.set_broadcast_model(net)
controller.set_broadcast_optimizer(learning)
controller.set_broadcast_optimizer(counting)
controller.set_broadcast_state(scheduler)
parts = {"model": net, "learning": learning, "counting": counting, "scheduler": scheduler, "controller": controller}


@controller.elastic_run
def train(inputs: Tensor, targets: Tensor, indices: Tensor) -> None:
    dawdle()
    learning.zero_grad()
    counting.zero_grad()
    loss = net.loss(net(inputs, indices), targets)
    dawdle()
    loss.backward()
    dawdle()
    clip(net.learning())
    learning.step()
    counting.step()
    scheduler.step()


with everstep.Checkpointer(checkpoints()) as checkpointer:
    saved = checkpointer.load() or {}
    for name, part in parts.items():
        if saved or part is controller:
            part.load_state_dict(saved.get(name, {}))
    if saved:
        tell("resumed", step=controller.num_steps)
    with controller.scope():
        step = controller.num_steps
        for batch in loader:
            train(*batch)
            if controller.num_steps > step:
                step = controller.num_steps
                tell_step(net, step, args.epochs)
                if step % SAVE_EVERY == 0 and controller.rank == 0:
                    checkpointer.save(step, parts)
            dawdle()
        if controller.rank == 0:
            checkpointer.save(controller.num_steps, parts)
tell_result(net, controller.num_steps, args.epochs)
