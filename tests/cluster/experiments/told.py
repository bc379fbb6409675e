"""A trial without a model: its loss depends on its hyperparameters alone. Some are invalid, some fail."""

from pathlib import Path

import everstep

hparams = everstep.get_hparams()
if hparams["x"] > hparams.get("most", 1.0):
    raise everstep.InvalidHP("x is too large")
if hparams["x"] > hparams.get("most_that_works", 1.0):
    Path("nowhere.txt").read_text()
everstep.report({"validation_loss": (hparams["x"] - 0.3) ** 2 + hparams.get("y", 0.0)}, step=1)
