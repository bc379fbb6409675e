"""A trial out of its checkpoint: by uuid, with its code, its hyperparameters and its weights."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.errors import UsageError
from everstep.experimental import client
from everstep.pytorch import Batch, CheckpointLoadContext, load_trial_from_checkpoint_path
from lab.one_weight import OneWeight, fit
from lab.refused import refused

SCRIPT = """
import torch
from torch import nn
from torch.utils import data
from everstep import pytorch


class Mine(pytorch.PyTorchTrial):
    def __init__(self, context, times=1):
        self.context, self.times = context, times
        self.model = context.wrap_model(nn.Linear(1, 1, bias=False))
        nn.init.ones_(self.model.weight)
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=context.get_hparam("lr")))

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch[0]).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch):
        return {"loss": self.model(batch[0]).square().mean()}

    def build_training_data_loader(self):
        return pytorch.DataLoader(data.TensorDataset(torch.ones(8, 1)), batch_size=2)

    build_validation_data_loader = build_training_data_loader
"""


@pytest.fixture
def uuid(fresh_folder: Path) -> str:
    """Of a trial that a module of the folder defines, after 3 batches."""
    (fresh_folder / "my_model.py").write_text(textwrap.dedent(SCRIPT))
    (fresh_folder / "secret.txt").write_text("keep me here")
    (fresh_folder / ".everstepignore").write_text("*.txt\n")
    with everstep.import_from_path(fresh_folder):
        import my_model  # type: ignore[import-not-found]
    uuids: list[str] = []

    class Told(everstep.pytorch.PyTorchCallback):
        def on_checkpoint_upload_end(self, uuid: str) -> None:
            uuids.append(uuid)

    class Trained(my_model.Mine):  # type: ignore[misc]
        def build_callbacks(self) -> Any:
            return {"told": Told()}

    Trained.__module__, Trained.__qualname__ = "my_model", "Mine"
    with everstep.pytorch.init(hparams={"lr": 0.25}, enable_tensorboard_logging=False) as context:
        everstep.pytorch.Trainer(Trained(context), context).fit(max_length=Batch(3))
    return uuids[-1]


def test_a_trial_is_loaded_with_its_code_hyperparameters_and_weights(uuid: str) -> None:
    path = client.get_checkpoint(uuid)
    Path("my_model.py").write_text("raise AssertionError('the present code is not the checkpoint's')")
    trial = load_trial_from_checkpoint_path(path)

    assert trial.model.weight.item() == 2.0**-3  # type: ignore[attr-defined]
    assert trial.context.get_hparam("lr") == 0.25  # type: ignore[attr-defined]
    assert "my_model" not in sys.modules


def test_as_the_guide_has_it(uuid: str) -> None:
    path = client.get_checkpoint(uuid)
    with everstep.import_from_path(path + "/code/"):
        import my_model
    context = CheckpointLoadContext(hparams={"lr": 1.0})
    trial = my_model.Mine(context)
    assert trial.model.weight.item() == 1.0, "instantiated, not restored"


def test_arguments_of_the_trial_and_another_class(uuid: str) -> None:
    path = client.get_checkpoint(uuid)
    assert load_trial_from_checkpoint_path(path, trial_kwargs={"times": 3}).times == 3  # type: ignore[attr-defined]
    with everstep.import_from_path(path + "/code/"):
        import my_model

    class Other(my_model.Mine):  # type: ignore[misc]
        pass

    loaded = load_trial_from_checkpoint_path(path, trial_class=Other, torch_load_kwargs={"weights_only": False})
    assert type(loaded) is Other and loaded.model.weight.item() == 2.0**-3


def test_a_trial_that_takes_hparams_gets_those_that_it_was_trained_with(uuid: str) -> None:
    path = client.get_checkpoint(uuid)
    with everstep.import_from_path(path + "/code/"):
        import my_model

    class Guided(my_model.Mine):  # type: ignore[misc]
        def __init__(self, context: Any, hparams: Any) -> None:
            super().__init__(context)
            self.lr = hparams["lr"]

    assert load_trial_from_checkpoint_path(path, trial_class=Guided).lr == 0.25  # type: ignore[attr-defined]
    given = {"hparams": {"lr": 1.0}}
    assert load_trial_from_checkpoint_path(path, Guided, given).lr == 1.0  # type: ignore[attr-defined]


def test_a_missing_argument_of_the_trial_is_named(uuid: str) -> None:
    path = client.get_checkpoint(uuid)
    with everstep.import_from_path(path + "/code/"):
        import my_model

    class Wide(my_model.Mine):  # type: ignore[misc]
        def __init__(self, context: Any, width: int, depth: int = 1) -> None:
            super().__init__(context)

    with refused("trial-arguments-missing", UsageError) as caught:
        load_trial_from_checkpoint_path(path, Wide)
    assert "Wide needs the arguments width" in str(caught.value)


def test_what_is_to_be_ignored_is_not_in_the_code(uuid: str) -> None:
    code = Path(client.get_checkpoint(uuid)) / "code"
    assert sorted(path.name for path in code.iterdir() if not path.name.startswith(".")) == ["my_model.py", "train.py"]


def test_a_trial_of_the_script_itself_is_loaded_again(fresh_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh_folder / "train.py").write_text(textwrap.dedent(SCRIPT))
    with everstep.import_from_path(fresh_folder):
        import train  # type: ignore[import-not-found]
    kind = type("Mine", (train.Mine,), {"__module__": "__main__"})
    with everstep.pytorch.init(hparams={"lr": 0.25}, enable_tensorboard_logging=False) as context:
        everstep.pytorch.Trainer(kind(context), context).fit(max_length=Batch(2))
    (line,) = [json.loads(each) for path in Path("runs").rglob("metrics.jsonl")
               for each in path.read_text().splitlines() if '"checkpoint"' in each]  # fmt: skip

    trial = load_trial_from_checkpoint_path(client.get_checkpoint(line["uuid"]))
    assert trial.model.weight.item() == 2.0**-2  # type: ignore[attr-defined]


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with refused("not-a-checkpoint-folder", UsageError):
        load_trial_from_checkpoint_path(str(tmp_path))


def test_a_context_for_loading_trains_nothing() -> None:
    trial = OneWeight(CheckpointLoadContext(hparams={"a": 1}, exp_conf={"name": "n"}))
    assert trial.w == 1.0
    assert trial.context.get_hparams() == {"a": 1}
    with refused("step-before-training", UsageError):
        trial.context.step_optimizer(trial.optimizer)


def test_training_beside_a_context_for_loading() -> None:
    OneWeight(CheckpointLoadContext())
    assert fit(max_length=Batch(2)).w == 1 / 4


def test_a_trial_of_a_notebook_is_loaded_with_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook the main module has no file."""
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    told: list[str] = []

    class Told(everstep.pytorch.PyTorchCallback):
        def on_checkpoint_upload_end(self, uuid: str) -> None:
            told.append(uuid)

    class InNotebook(OneWeight):
        pass

    InNotebook.__module__, InNotebook.__qualname__ = "__main__", "InNotebook"
    fit(InNotebook, options={"callbacks": {"told": Told()}}, max_length=Batch(2))
    path = client.get_checkpoint(told[-1]).download()

    assert load_trial_from_checkpoint_path(path, trial_class=InNotebook).w == 0.25
    with refused("trial-code-not-saved", UsageError) as error:
        load_trial_from_checkpoint_path(path)
    assert "trial_class=" in str(error.value)
