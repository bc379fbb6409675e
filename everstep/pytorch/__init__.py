"""Door 3, trials: you write the model, its data and one batch; the Trainer has the loop.

    with everstep.pytorch.init(hparams={"global_batch_size": 32}) as context:
        trainer = everstep.pytorch.Trainer(MyTrial(context), context)
        trainer.fit(max_length=everstep.pytorch.Epoch(3), validation_period=everstep.pytorch.Epoch(1))

The same script runs under `python`, `torchrun` and `everstep run`. Built on the native loop: a batch is a global batch
and one step, and train_batch is called for each of its micro-batches that this worker computes."""

from everstep.data.loader import DataLoader
from everstep.pytorch.callbacks import EarlyStopping, PyTorchCallback
from everstep.pytorch.checkpoints import CheckpointLoadContext, load_trial_from_checkpoint_path
from everstep.pytorch.context import PyTorchTrialContext
from everstep.pytorch.init import init
from everstep.pytorch.reducers import MetricReducer, Reducer
from everstep.pytorch.schedulers import LRScheduler
from everstep.pytorch.train_units import Batch, Epoch, Record, Seconds, TrainUnit
from everstep.pytorch.trainer import Trainer
from everstep.pytorch.trial import PyTorchTrial, TorchData

__all__ = [
    "init",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Trainer",
    "Batch",
    "Epoch",
    "Record",
    "Seconds",
    "TrainUnit",
    "TorchData",
    "LRScheduler",
    "PyTorchCallback",
    "EarlyStopping",
    "MetricReducer",
    "Reducer",
    "DataLoader",
    "CheckpointLoadContext",
    "load_trial_from_checkpoint_path",
]
