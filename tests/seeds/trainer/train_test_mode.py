import everstep as det
from everstep import pytorch
from model import MNistTrial

hparams = {"global_batch_size": 32, "lr": 0.02}

with det.pytorch.init(hparams=hparams) as train_context:
    trial = MNistTrial(train_context, hparams)
    trainer = det.pytorch.Trainer(trial, train_context)
    trainer.fit(
                 max_length=pytorch.Epoch(1),
                 checkpoint_period=pytorch.Batch(10),
                 validation_period=pytorch.Batch(10),
                 # Train and validate 1 batch, then checkpoint and exit.
                 test_mode=True
             )
