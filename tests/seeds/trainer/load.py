import sys

import everstep as det
from everstep import pytorch
from everstep.experimental import client

MY_CHECKPOINT_UUID = sys.argv[1]

# Download checkpoint and load training code from checkpoint.
path = client.get_checkpoint(MY_CHECKPOINT_UUID)
with det.import_from_path(path + "/code/"):
    import model as my_model_def

# Create CheckpointLoadContext for instantiating trial.
context = pytorch.CheckpointLoadContext()
# Instantiate trial with context and any other args.
my_trial = my_model_def.MyPyTorchTrial(context, {"lr": 0.02})
print("made", type(my_trial).__name__, "from", my_model_def.__file__)

loaded = pytorch.load_trial_from_checkpoint_path(path, trial_kwargs={"hparams": {"lr": 0.02}})
print("loaded", type(loaded).__name__, float(loaded.model[0].weight.detach().abs().sum()))
