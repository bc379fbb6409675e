"""Step 6 of the seed: a trial that was trained by a script is loaded by another one, beside a newer one of its name."""

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

MODEL_DEF = """
import torch
from everstep import pytorch
from nets import ANSWER

class MyTrial(pytorch.PyTorchTrial):
    answer = ANSWER

    def __init__(self, context, hparams=None):
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(1, 1, bias=False))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def build_training_data_loader(self):
        data = torch.utils.data.TensorDataset(torch.ones(32, 1), torch.ones(32, 1))
        return pytorch.DataLoader(data, batch_size=self.context.get_per_slot_batch_size())

    build_validation_data_loader = build_training_data_loader

    def loss(self, batch):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.model(inputs), targets)

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"validation_loss": self.loss(batch)}
"""

TRAIN = """
import logging
import everstep as det
from everstep import pytorch
from my_model_def import MyTrial

def main():
    with det.pytorch.init(hparams={"global_batch_size": 8}) as train_context:
        trial = MyTrial(train_context)
        trainer = det.pytorch.Trainer(trial, train_context)
        trainer.fit(
            max_length=pytorch.Epoch(1),
            checkpoint_period=pytorch.Batch(10),
            validation_period=pytorch.Batch(10),
        )
        print("weight", trial.model.weight.item())

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    main()
"""

LOAD = """
import json, sys
import everstep as det
from everstep import pytorch
from everstep.experimental import client
import my_model_def as mine

path = client.get_checkpoint(sys.argv[1])
with det.import_from_path(path + "/code/"):
    import my_model_def

context = pytorch.CheckpointLoadContext()
my_trial = my_model_def.MyTrial(context, {})
loaded = pytorch.load_trial_from_checkpoint_path(path)
print(json.dumps({
    "mine": mine.MyTrial.answer, "theirs": my_trial.answer, "loaded": type(loaded).answer,
    "weight": loaded.model.weight.item(),
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
    old = write(tmp_path / "old", my_model_def=MODEL_DEF, nets="ANSWER = 'old'", train=TRAIN)
    new = write(tmp_path / "new", my_model_def=MODEL_DEF, nets="ANSWER = 'new'", load=LOAD)

    trained = run(old, "train.py")
    (uuid,) = {path.stem for path in (tmp_path / "home" / "checkpoints").iterdir()}
    told = json.loads(run(new, "load.py", uuid).stdout.splitlines()[-1])

    assert uuid in trained.stdout + trained.stderr
    weight = float(re.findall(r"^weight (.+)$", trained.stdout, re.MULTILINE)[0])
    assert told == {"mine": "new", "theirs": "old", "loaded": "old", "weight": pytest.approx(weight, abs=0)}
