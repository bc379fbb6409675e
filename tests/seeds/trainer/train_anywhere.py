import os

import torch.distributed as dist

import everstep as det
from everstep import core, pytorch
from model import MNistTrial

hparams = {"global_batch_size": 32, "lr": 0.02}


def main():
    local = det.get_cluster_info() is None
    if local:
        # (Optional) Initialize distributed backend before pytorch.init()
        dist.init_process_group(backend="gloo")
        # Set flag used by internal PyTorch training loop
        os.environ["USE_TORCH_DISTRIBUTED"] = "true"
        distributed_context = core.DistributedContext.from_torch_distributed (chief_ip="localhost")
    else:
        distributed_context = None

    with det.pytorch.init(
      hparams=hparams,
      distributed=distributed_context
    ) as train_context:
        trial = MNistTrial(train_context, hparams)
        trainer = det.pytorch.Trainer(trial, train_context)
        trainer.fit(
            max_length=pytorch.Epoch(1),
            checkpoint_period=pytorch.Batch(10),
            validation_period=pytorch.Batch(10),
            latest_checkpoint=None if local else det.get_cluster_info().latest_checkpoint
        )


main()
