"""A Trainer's script: as it would be without an experiment."""

from model_def import ImageTrial

import everstep
from everstep import pytorch


def main():
    with pytorch.init(hparams=everstep.get_cluster_info().trial.hparams) as context:
        pytorch.Trainer(ImageTrial(context), context).fit()


if __name__ == "__main__":
    main()
