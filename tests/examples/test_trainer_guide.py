"""The guide to Determined's PyTorch Trainer runs after changing its imports: alone, in worlds of several workers, and
out of a checkpoint. What it leaves out (`...`, data, hyperparameters) is filled in here, and its slips are mended.

Test mode and equal weights are shown with a script of our own."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab import nest
from lab.command import EVERSTEP, Command
from lab.local_stage import LocalStage
from lab.seeds import snippet

OURS = Path(__file__).parent / "trainer"
BATCHES = 12  # of an epoch: 384 samples in batches of 32

IMPORTS = """
import logging, os, pathlib, sys
from typing import Any, Dict
import torch, yaml
import torch.distributed as dist
from torch import nn
import everstep as det
from everstep import core, pytorch
from everstep.pytorch import DataLoader, PyTorchTrialContext
"""
DATA = """
def make_set(size, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (size,), generator=generator)
    data = torch.randn(size, 9216, generator=generator) * 0.01
    data[torch.arange(size), labels] += 1
    return torch.utils.data.TensorDataset(data, labels)

MNistTrial = MyPyTorchTrial
"""
FROM_MODEL = """
import model
from model import MyPyTorchTrial, MNistTrial
hparams = {"global_batch_size": 32, "lr": 0.02}
"""
LEFT_OUT = [
    "data, labels = batch",
    "data, labels = batch; output = self.model(data); accuracy = (output.argmax(dim=1) == labels).float().mean()"
    "; validation_loss = nn.functional.nll_loss(output, labels)",
    "train_set = make_set(384, seed=1)",
    "validation_set = make_set(64, seed=2)",
]
WITHOUT_HPARAMS = {
    "MNistTrial(train_context)": "MNistTrial(train_context, hparams)",
    "det.pytorch.init(\n": "det.pytorch.init(hparams=hparams,\n",
    "gloo|nccl": "gloo",
}


def mend(text: str, slips: dict[str, str]) -> str:
    for slip, instead in slips.items():
        assert slip in text, slip
        text = text.replace(slip, instead)
    text = re.sub(r"^( *)\+", r"\1 ", text, flags=re.MULTILINE)  # lines to add to those that were shown before
    return textwrap.dedent(re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE))  # comments stand anywhere


def model() -> str:
    """Step 1."""
    text = snippet(4, "class MyPyTorchTrial")
    for instead in LEFT_OUT:
        text = text.replace("    ...", f"    {instead}", 1)
    size = "batch_size=self.context.get_per_slot_batch_size()"
    for data, shuffle in (("train_set", ", shuffle=True"), ("validation_set", "")):
        text = text.replace(f"DataLoader({data})", f"DataLoader({data}, {size}{shuffle})")
    return IMPORTS + text + DATA


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the guide's steps are typed, each into a file."""
    steps = {
        "train_first": mend(
            snippet(4, "configure_profiler"),
            {
                "from determined": "from everstep",
                "MyPyTorchTrial(train_context)": "MyPyTorchTrial(train_context, hparams)",
            },
        ),
        "train": mend(snippet(4, "hparams=hparams, exp_conf=expconf"), {"MyPytorchTrial": "MyPyTorchTrial"}),
        "train_distributed": mend(snippet(4, "specifying chief IP"), WITHOUT_HPARAMS) + "main()",
        "train_anywhere": mend(
            snippet(4, "local = det"),
            WITHOUT_HPARAMS
            | {"+     with det": "+   with det", "latest_checkpoint=det": "latest_checkpoint=None if local else det"},
        )
        + "main()",
        "train_on_cluster": mend(snippet(4, "def on_cluster"), {}) + "on_cluster()",
    }
    for name, text in steps.items():
        (tmp_path / f"{name}.py").write_text(IMPORTS + FROM_MODEL + text)
    (tmp_path / "model.py").write_text(model())
    (tmp_path / "det.yaml").write_text(snippet(4, "slots_per_trial"))
    (tmp_path / "load.py").write_text("import sys\n" + load())
    return tmp_path


def load() -> str:
    """Step 6."""
    slips = {
        "import determined": "import everstep",
        "from determined": "from everstep",
        "    path =": "path =",
        "    with": "with",
        "MY_CHECKPOINT_UUID": "sys.argv[1]",
        "import my_model_def": "import model as my_model_def",
        "MyTrial(context, ...)": 'MyPyTorchTrial(context, {"lr": 0.02})',
    }
    return (
        mend(snippet(4, "import_from_path"), slips)
        + """
print("made", type(my_trial).__name__, "from", my_model_def.__file__)
loaded = pytorch.load_trial_from_checkpoint_path(path)
import everstep
print("loaded", type(loaded).__name__, everstep.weights_digest(loaded.model))
"""
    )


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return shutil.copytree(OURS, tmp_path, dirs_exist_ok=True)


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = [
        json.loads(line) for path in folder.glob("runs/*/*/metrics.jsonl") for line in path.read_text().splitlines()
    ]
    return [line for line in found if line["kind"] == kind]


def check_epoch(folder: Path) -> dict[str, Any]:
    """It was trained for one epoch, and has learned; its last validation."""
    assert [line["batches"] for line in lines(folder, "validation")] == [10, BATCHES]
    assert lines(folder, "checkpoint")[-1]["batches"] == BATCHES
    assert lines(folder, "end")[0]["batches"] == BATCHES
    first, last = (line["metrics"] for line in lines(folder, "validation"))
    assert last["validation_loss"] < first["validation_loss"]
    return dict(last)


def test_step_3_alone_and_step_6_from_its_checkpoint(folder: Path, python_here: Callable[..., str]) -> None:
    pytest.importorskip("yaml")
    python_here("train.py")
    check_epoch(folder)
    assert [line["batches"] for line in lines(folder, "checkpoint")][:2] == [2, 5]

    uuid = lines(folder, "checkpoint")[-1]["uuid"]
    said = python_here("load.py", uuid)
    assert re.search(r"made MyPyTorchTrial from .*/code/model\.py", said)
    assert "loaded MyPyTorchTrial" in said


def test_step_2_by_the_test_command_of_step_3(folder: Path, type_command: Callable[..., Command]) -> None:
    """`det e create det.yaml . --local --test`, with the guide's own file."""
    (folder / "train_first.py").rename(folder / "train.py")
    said = type_command(*EVERSTEP, "e", "create", "det.yaml", ".", "--local", "--test").finish()
    assert "the test succeeded" in said
    assert re.findall(r"validation at batch (\d+)", said) == ["1"]
    assert re.findall(r"checkpoint \S+ of batch (\d+): .*\n\[w0\] Batch\(1\) reached", said) == ["1"]


def test_step_3_by_torchrun(folder: Path, torchrun: Callable[..., Command]) -> None:
    torchrun("--nproc-per-node=2", "train_distributed.py").finish()
    check_epoch(folder)


@pytest.mark.parametrize("script", ["train_distributed.py", "train_anywhere.py"])
def test_steps_3_and_4_by_everstep_run(script: str, folder: Path, everstep_run: Callable[..., Command]) -> None:
    everstep_run("--nproc-per-node=2", script).finish()
    check_epoch(folder)


def test_step_4_by_torchrun(folder: Path, torchrun: Callable[..., Command]) -> None:
    torchrun("--nproc-per-node=2", "train_anywhere.py").finish()
    check_epoch(folder)


def test_step_4_in_a_job_alone(folder: Path, everstep_run: Callable[..., Command]) -> None:
    """Length and hyperparameters are those of the job file."""
    job = {
        "name": "guide",
        "hyperparameters": {"global_batch_size": 32, "lr": 0.02},
        "searcher": {"name": "single", "metric": "validation_loss", "max_length": {"batches": 15}},
        "resources": {"slots_per_trial": 4},
    }
    (folder / "job.json").write_text(json.dumps(job))
    everstep_run("--nproc-per-node=2", "train_on_cluster.py", EVERSTEP_EXPERIMENT=str(folder / "job.json")).finish()
    assert [line["batches"] for line in lines(folder, "validation")] == [15]
    assert lines(folder, "end")[0]["batches"] == 15


def test_steps_5_and_6_by_e_create_with_the_guides_own_file(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, type_command: Callable[..., Command]
) -> None:
    """It asks for 8 slots and a launcher of Determined's. The guide has no learning rate, and trains for long. One slot
    and two give the same bits."""
    (folder / "train_on_cluster.py").rename(folder / "train.py")
    given = ("--config", "hyperparameters.lr=0.02", "--config", "searcher.max_length.batches=20")
    digests = set()
    for slots in ("1", "2"):
        with LocalStage(tmp_path_factory.mktemp("service"), EVERSTEP_LOCAL_SLOTS=slots) as stage:
            words = (*given, "--config", f"resources.min_slots={slots}")
            said = type_command(*EVERSTEP, "e", "create", "det.yaml", ".", *words, **stage.env).finish()
            assert re.search(r"^best: trial 1, validation_loss \S+ after 20 batches", said, re.MULTILINE)
            (uuid,) = re.findall(r"^checkpoint: (\S+)", said, re.MULTILINE)
            said = type_command(sys.executable, "load.py", uuid, start=nest.start_script, **stage.env).finish()
        assert re.search(r"made MyPyTorchTrial from .*/code/model\.py", said)
        digests.update(re.findall(r"loaded MyPyTorchTrial (\w{64})", said))
    assert len(digests) == 1


@pytest.mark.parametrize("launcher", ["python", "torchrun", "everstep run"])
def test_test_mode(launcher: str, ours: Path, python_here: Any, torchrun: Any, everstep_run: Any) -> None:
    """One batch, one validation batch, one checkpoint."""
    start = {
        "python": python_here,
        "torchrun": lambda *words: torchrun("--nproc-per-node=2", *words).finish(),
        "everstep run": lambda *words: everstep_run("--nproc-per-node=2", *words).finish(),
    }[launcher]
    start("train.py", "--test")
    for kind in ("training", "validation", "checkpoint", "end"):
        assert [line["batches"] for line in lines(ours, kind)] == [1]


def test_the_same_weights_alone_and_by_everstep_run(
    ours: Path, python_here: Callable[..., str], everstep_run: Callable[..., Command]
) -> None:
    python_here("train.py")
    alone = check_epoch(ours)
    shutil.rmtree(ours / "runs")
    everstep_run("--nproc-per-node=3", "train.py").finish()
    assert check_epoch(ours) == alone
