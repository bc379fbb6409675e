"""Train the trial for an epoch, or with --test for one batch: alone, or as one of torchrun's processes."""

import os
import sys

import torch.distributed as dist
from trials import Spikes

import everstep
from everstep import core, pytorch

IS_TORCHRUN = everstep.get_cluster_info() is None and "RANK" in os.environ
hparams = {"global_batch_size": 32, "lr": 0.1}
if IS_TORCHRUN:
    dist.init_process_group("gloo")
world = core.DistributedContext.from_torch_distributed(chief_ip="localhost") if IS_TORCHRUN else None

with pytorch.init(hparams=hparams, distributed=world, micro_batches=None if IS_TORCHRUN else 8) as context:
    every_ten = pytorch.Batch(10)
    pytorch.Trainer(Spikes(context, lr=hparams["lr"]), context).fit(
        max_length=pytorch.Epoch(1),
        validation_period=every_ten,
        checkpoint_period=every_ten,
        test_mode="--test" in sys.argv,
    )
