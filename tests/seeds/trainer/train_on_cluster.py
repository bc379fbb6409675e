import everstep as det
from everstep import pytorch
import model


def on_cluster():
    """
    On-cluster training with Trainer API (entrypoint: python3 train.py)
    """
    hparams = det.get_cluster_info().trial.hparams

    with det.pytorch.init() as train_context:
        trial_inst = model.MNistTrial(train_context, hparams)
        trainer = det.pytorch.Trainer(trial_inst, train_context)
        trainer.fit(
            checkpoint_period=pytorch.Batch(10),
            validation_period=pytorch.Batch(100),
            latest_checkpoint=det.get_cluster_info().latest_checkpoint,
        )


on_cluster()
