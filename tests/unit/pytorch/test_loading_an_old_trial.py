"""A trial that one script trained is loaded by another one, beside a newer trial of the same name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import everstep
from everstep import env

TRIALS = """
import torch
from everstep import pytorch
from torch.utils.data import TensorDataset
from version import VERSION

class Doubling(pytorch.PyTorchTrial):
    version = VERSION

    def __init__(self, context):
        self.context = context
        self.net = context.wrap_model(torch.nn.Linear(1, 1, bias=False))
        self.sgd = context.wrap_optimizer(torch.optim.SGD(self.net.parameters(), lr=0.1))

    def _loader(self):
        ones = torch.ones(32, 1)
        return pytorch.DataLoader(TensorDataset(ones, 2 * ones), batch_size=self.context.get_per_slot_batch_size())

    build_training_data_loader = build_validation_data_loader = _loader

    def _error(self, batch):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def train_batch(self, batch, epoch_idx, batch_idx):
        error = self._error(batch)
        self.context.backward(error)
        self.context.step_optimizer(self.sgd)
        return {"error": error}

    def evaluate_batch(self, batch):
        return {"error": self._error(batch)}
"""

TRAIN = """
import logging
import everstep
from everstep import pytorch
from trials import Doubling

logging.basicConfig(level="INFO", format=everstep.LOG_FORMAT)
with pytorch.init(hparams={"global_batch_size": 8}) as context:
    doubling = Doubling(context)
    pytorch.Trainer(doubling, context).fit(max_length=pytorch.Epoch(1), checkpoint_period=pytorch.Batch(10))
print("weight", doubling.net.weight.item())
"""

LOAD = """
import json, sys
import everstep, trials
from everstep import pytorch
from everstep.experimental.client import get_checkpoint

folder = get_checkpoint(sys.argv[1])
with everstep.import_from_path(f"{folder}/code/"):
    import trials as old_trials
made = old_trials.Doubling(pytorch.CheckpointLoadContext())
loaded = pytorch.load_trial_from_checkpoint_path(folder)
print(json.dumps({
    "here": trials.Doubling.version, "made": made.version, "loaded": loaded.version, "weight": loaded.net.weight.item(),
}))
"""


def run(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    outer = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
    ours = {"PYTHONPATH": str(Path(everstep.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script, *arguments],
        cwd=folder,
        env=outer | ours | {env.HOME: str(folder.parent / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def write(folder: Path, **files: str) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_an_old_trial_is_loaded_beside_the_new_one(tmp_path: Path) -> None:
    old = write(tmp_path / "old", trials=TRIALS, version="VERSION = 'old'", train=TRAIN)
    new = write(tmp_path / "new", trials=TRIALS, version="VERSION = 'new'", load=LOAD)

    trained = run(old, "train.py")
    (uuid,) = {path.stem for path in (tmp_path / "home" / "checkpoints").iterdir()}
    told = json.loads(run(new, "load.py", uuid).stdout.splitlines()[-1])

    assert uuid in trained.stdout + trained.stderr
    weight = float(re.findall(r"^weight (.+)$", trained.stdout, re.MULTILINE)[0])
    assert told == {"here": "new", "made": "old", "loaded": "old", "weight": pytest.approx(weight, abs=0)}
