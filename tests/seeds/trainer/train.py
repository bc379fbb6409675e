import logging
import pathlib

import yaml

import everstep as det
from everstep import pytorch
from model import MyPyTorchTrial


def main():
    hparams = {"global_batch_size": 32, "lr": 0.02}
    expconf = yaml.safe_load(pathlib.Path("./det.yaml").read_text())

    # hparams and exp_conf are optional. Only needed by init() if training code calls
    # context.get_hparams() or context.get_experiment_config()
    with det.pytorch.init(hparams=hparams, exp_conf=expconf) as train_context:
        # (Optional) Preferred way to access hparams in the Trial
        trial = MyPyTorchTrial(train_context, hparams)
        trainer = det.pytorch.Trainer(trial, train_context)

        # (Optional) Configure Determined profiler before calling .fit()
        trainer.configure_profiler(enabled=True,
                                   sync_timings=True,
                                   begin_on_batch=0,
                                   end_after_batch=10)

        # Train
        trainer.fit(
            max_length=pytorch.Epoch(1),
            checkpoint_period=pytorch.Batch([2,5]),
            validation_period=pytorch.Batch(10),
        )


if __name__ == "__main__":
    # Configure logging here instead of through the expconf
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    main()
