"""docs/guides/coming_from_determined.md is true: every row of its tables is run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import everstep
from everstep.job_file.experiment import load_experiment
from lab.command import EVERSTEP, ROOT, run

PAGE = (ROOT / "docs" / "guides" / "coming_from_determined.md").read_text()
RENAMED = {"det preview-search det.yaml": "everstep e preview det.yaml"}
ON_A_PAUSED_ONE = ("activate", "pause", "cancel", "kill", "set")

MODEL = """
import torch
from torch.utils.data import DataLoader, TensorDataset

from everstep import pytorch

INPUTS = torch.linspace(-1, 1, 64).unsqueeze(1)


class LineTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(1, 1))
        rate = context.get_hparam("rate")
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=rate))

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
FILE = """
name: line
entrypoint: model_def:LineTrial
hyperparameters: {global_batch_size: 8, rate: {type: double, minval: 0.01, maxval: 0.3}}
searcher: {name: random, metric: validation_loss, max_trials: 2, max_length: {batches: 4}}
resources: {slots_per_trial: 2}
max_restarts: 0
"""


def table(heading: str) -> list[tuple[str, str]]:
    """The rows of the table under a heading."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return re.findall(r"^\| (`.+?) \| (.+) \|$", section, re.MULTILINE)


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# --- the imports ---


@pytest.mark.parametrize("new", [codes(new)[0] for _, new in table("The imports")])
def test_an_import_or_name(new: str, tmp_path: Path) -> None:
    if new.startswith("python3 "):
        (tmp_path / "train.py").write_text("print('started')\n")
        done = run(EVERSTEP[0], *shlex.split(new)[1:], folder=tmp_path)
        assert "started" in done.stdout, done.stderr
    elif "import " in new.partition("(")[0]:
        exec(new, {})  # a line of our own page
    else:
        assert callable(getattr(everstep, new.removeprefix("everstep.").partition("(")[0]))


# --- the commands ---


def test_only_the_commands_name_changes() -> None:
    for old, new in table("The commands"):
        (old,), (new,) = codes(old), codes(new)
        assert new == RENAMED.get(old, re.sub("^det ", "everstep ", old))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    here = tmp_path_factory.mktemp("determined")
    (here / "model_def.py").write_text(MODEL)
    (here / "det.yaml").write_text(FILE)
    (here / "template.yaml").write_text("max_restarts: 1\n")
    yield here
    typed(here, "pool", "stop")


def typed(folder: Path, *words: str) -> str:
    home = folder.parent / f"{folder.name}-home"
    done = run(*EVERSTEP, *words, folder=folder, EVERSTEP_HOME=str(home), OMP_NUM_THREADS="1")
    assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_every_command_does_what_it_did(folder: Path) -> None:
    finished = 0
    best, worst = "", ""
    for seed, (_, cell) in enumerate(table("The commands")):
        (command,) = codes(cell)
        words = shlex.split(command)[1:]
        verb = words[1]
        if words[0] in ("e", "trial") and verb in ON_A_PAUSED_ONE:
            another = f"reproducibility.experiment_seed={seed}"
            said = typed(folder, "e", "create", "det.yaml", ".", "--paused", "--config", another)
            which = created(said)
        else:
            which = finished
        given = {"ID": str(which), "UUID": worst if verb in ("rm", "delete") else best}
        if "TRIAL" in words:
            given["TRIAL"] = str(json.loads(typed(folder, "e", "lt", str(which), "--json"))[0]["trial_id"])
        said = typed(folder, *(given.get(word, word) for word in words))
        if words == ["e", "create", "det.yaml", "."]:
            finished = created(said)
            assert "COMPLETED" in said
            listed = json.loads(typed(folder, "e", "lc", str(finished), "--best", "2", "--json"))
            best, worst = (each["uuid"] for each in listed)
        if verb == "register-version":
            assert f"{best} is version 1" in said
        if verb == "list-trials":
            assert said.count("COMPLETED") == 2


def created(said: str) -> int:
    return int(re.findall(r"(?:Created|Continuing) experiment (\d+)", said)[0])


# --- the file ---

SAMPLES: dict[str, Any] = {
    "name": "line",
    "description": "a line",
    "labels": ["quick"],
    "hyperparameters": {"rate": 0.1},
    "data": {"root": "/data"},
    "entrypoint": "python3 -m determined.launch.torch_distributed python3 train.py",
    "searcher": {"name": "single", "metric": "loss"},
    "resources.slots_per_trial": 8,
    "max_restarts": 2,
    "reproducibility.experiment_seed": 4,
    "records_per_epoch": 100,
    "min_validation_period": {"batches": 10},
    "min_checkpoint_period": {"batches": 10},
    "checkpoint_storage": {"type": "s3", "bucket": "b", "save_experiment_best": 2},
    "environment.environment_variables": ["A=1"],
    "environment.image": "registry.example.com/image:1",
    "environment.pod_spec": {"spec": {"hostNetwork": True}},
    "bind_mounts": [{"host_path": "/a", "container_path": "/b"}],
    "slurm": {"sbatch_args": ["--exclusive"]},
    "pbs": {"pbsbatch_args": ["-l place=free"]},
    "resources.shm_size": "2Gi",
    "resources.resource_pool": "gpus",
    "resources.priority": 10,
    "resources.weight": 1.5,
    "resources.max_slots": 16,
    "preemption_timeout": 120,
    "workspace": "team",
    "project": "lines",
    "profiling": {"enabled": True},
    "optimizations.aggregation_frequency": 2,
    "optimizations.average_aggregated_gradients": False,
    "perform_initial_validation": True,
    "log_policies": [{"pattern": "x", "action": "cancel_retries"}],
}
SAID_AS = {  # by our names
    "environment.image": "image",
    "environment.pod_spec": "platform",
    "bind_mounts": "volumes",
    "slurm": "platform",
    "pbs": "platform",
    "resources.shm_size": "resources.shm",
}
KEYS = [(key, meaning) for cell, meaning in table("The file") for key in codes(cell)]


@pytest.mark.parametrize(("key", "meaning"), KEYS)
def test_a_key_of_the_file(key: str, meaning: str, tmp_path: Path) -> None:
    content = yaml.safe_load(FILE)
    *above, last = key.split(".")
    section = content
    for name in above:
        section = section.setdefault(name, {})
    section[last] = SAMPLES[key]
    (tmp_path / "det.yaml").write_text(yaml.safe_dump(content))
    loaded = load_experiment(tmp_path / "det.yaml")

    assert loaded.system == "Determined"
    if "ignored, with a note" in meaning:
        assert any(note.startswith(key) and "not carried over" in note for note in loaded.notes)
    elif "not used by experiments" in meaning:
        assert any(note.startswith(f"{SAID_AS[key]} is not used") for note in loaded.notes)
    else:
        assert loaded.notes == ()
