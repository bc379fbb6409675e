"""`everstep run -f det.yaml`: Determined's file with a single trial is one job, here with fewer workers than slots."""

from __future__ import annotations

import json
import re
from pathlib import Path

from lab.command import EVERSTEP, run
from lab.seeds import snippet

TRIAL = """
import torch
from torch.utils.data import DataLoader, TensorDataset

import everstep
from everstep import pytorch

INPUTS = torch.linspace(-1, 1, 320).unsqueeze(1)


class Digest(pytorch.PyTorchCallback):
    def __init__(self, model):
        self.model = model

    def on_validation_end(self, metrics):
        print("weights", everstep.weights_digest(self.model), flush=True)


class LineTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        print(f"{context.micro_batches} micro-batches", flush=True)

    def build_callbacks(self):
        return {"digest": Digest(self.model)}

    def build_training_data_loader(self):
        return DataLoader(TensorDataset(INPUTS, 3 * INPUTS), batch_size=self.context.get_per_slot_batch_size())

    build_validation_data_loader = build_training_data_loader

    def loss(self, batch):
        inputs, targets = batch
        return (self.model(inputs) - targets).square().mean()

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"validation_loss": self.loss(batch)}
"""
SCRIPT = """
import everstep
from everstep import pytorch
from model_def import LineTrial

with pytorch.init(hparams=everstep.get_cluster_info().trial.hparams) as context:
    pytorch.Trainer(LineTrial(context), context).fit()
"""
# The file asks for 8 slots. Fewer workers are enough, and the 8 micro-batches stay.
SHORT = ("--set", "resources.gpu=0", "--set", "searcher.max_length.batches=6")


def submit(folder: Path, file: str, *words: str, is_good: bool = True) -> str:
    (folder / "det.yaml").write_text(file)
    (folder / "model_def.py").write_text(TRIAL)
    (folder / "train.py").write_text(SCRIPT)
    done = run(*EVERSTEP, "run", "-f", "det.yaml", *words, folder=folder, EVERSTEP_HOME=str(folder / "home"))
    assert (done.returncode == 0) is is_good, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_single_trial_is_one_job_with_the_same_bits_on_2_and_3_slots_by_a_script_or_a_class(tmp_path: Path) -> None:
    script = snippet(4, "slots_per_trial")
    digests = []
    for slots, file in ((2, script), (3, re.sub("entrypoint: .*", "entrypoint: model_def:LineTrial", script))):
        (folder := tmp_path / f"{slots}").mkdir()
        said = submit(folder, file, *SHORT, "--set", f"workers_per_node={slots}", "--follow")
        assert "8 micro-batches" in said
        assert "Batch(6) reached: 6 batches" in said
        assert f"trains with {slots} workers" in said
        digests += [*set(re.findall(r"weights (\w{64})", said))]
        (row,) = json.loads(run(*EVERSTEP, "list", "--json", folder=folder, EVERSTEP_HOME=str(folder / "home")).stdout)
        assert row["state"] == "succeeded"
    assert len(digests) == 2 and digests[0] == digests[1]


def test_a_search_names_the_command_that_runs_it(tmp_path: Path) -> None:
    file = snippet(4, "slots_per_trial").replace("name: single", "name: random\n  max_trials: 4")
    said = submit(tmp_path, file, is_good=False)
    assert "this file is an experiment" in said and "everstep e create" in said
