"""Trains the class in model_def.py: as a trial of an experiment, or alone.

    python train.py                                                           # alone, for one epoch
    everstep e create adaptive.yaml . --include ../data/fashion-mnist-8k.npz  # 16 trials; stops the bad ones early

In an experiment, the searcher says how long a trial trains, and whether it continues."""

from model_def import ImageTrial

import everstep
from everstep import pytorch

ALONE = {"global_batch_size": 32, "learning_rate": 0.05, "momentum": 0.9, "hidden": 32}


def main():
    info = everstep.get_cluster_info()
    hparams = ALONE if info is None else info.trial.hparams
    with pytorch.init(hparams=hparams) as context:
        trainer = pytorch.Trainer(ImageTrial(context), context)
        trainer.fit(
            max_length=pytorch.Epoch(1) if info is None else None,  # in an experiment, the searcher decides
            validation_period=pytorch.Batch(64),
        )


if __name__ == "__main__":
    main()
