"""A trial out of a checkpoint: its code, its hyperparameters, its weights, without training."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from everstep.checkpoint.checkpointer import Checkpointer
from everstep.core import DistributedContext
from everstep.core.import_path import import_from_path
from everstep.engine.fixed_world import LoneMembership
from everstep.engine.step import Engine
from everstep.errors import UsageError
from everstep.ipc.progress_page import ProgressPage
from everstep.pytorch.context import PyTorchTrialContext
from everstep.pytorch.engine_world import EngineSource
from everstep.pytorch.saving import check_format, restore
from everstep.pytorch.trial import PyTorchTrial

log = logging.getLogger("everstep")


class CheckpointLoadContext(PyTorchTrialContext):
    """For making a trial outside of training, to use its models. It trains, reports and saves nothing."""

    def __init__(self, hparams: Mapping[str, Any] | None = None, exp_conf: Mapping[str, Any] | None = None) -> None:
        engine = Engine(lambda board, on_closed: LoneMembership(), ProgressPage(None))
        super().__init__(
            engine=engine,
            hparams=hparams or {},
            exp_conf=exp_conf or {},
            distributed=DistributedContext(EngineSource(engine)),
            device=torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu"),
            micro_batches=1,
        )


def load_trial_from_checkpoint_path(
    path: str,
    trial_class: type[PyTorchTrial] | None = None,
    trial_kwargs: Mapping[str, Any] | None = None,
    torch_load_kwargs: Mapping[str, Any] | None = None,
) -> PyTorchTrial:
    """The trial that saved it, with its weights: from a folder that client.get_checkpoint() gave.

    The class is found in the checkpoint's code, also if it was defined in the script itself, which is imported then;
    `trial_class` names another one. `torch_load_kwargs` is taken and has no effect: nothing here is unpickled."""
    folder = Path(path)
    try:
        origin = json.loads((folder / "checkpoint.json").read_text())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{folder} is no checkpoint's folder: {error}", hint="everstep.experimental.client.get_checkpoint(uuid)"
        ) from error
    with Checkpointer(origin["uri"]) as checkpointer:
        state = checkpointer.load(origin["step"])
        assert checkpointer.loaded is not None
        hparams = checkpointer.loaded.hparams
    check_format(state, f"checkpoint {origin.get('uuid', folder)}")
    if trial_class is None:
        trial_class = _trial_class(state["trial"], folder / "code")
    context = CheckpointLoadContext(hparams=hparams, exp_conf=state["experiment"])
    trial = trial_class(context, **(trial_kwargs or {}))
    restore(state, context, f"checkpoint {origin.get('uuid', folder)}")
    return trial


def _trial_class(spec: Mapping[str, str], code: Path) -> type[PyTorchTrial]:
    module_name, _, name = spec["class"].partition(":")
    if module_name == "__main__":
        module_name = spec["script"].removesuffix(".py")
    if not module_name:
        raise UsageError(
            f"{name} was defined in a notebook or an interpreter, whose code is in no file",
            hint="give load_trial_from_checkpoint_path(…, trial_class=…), or define the trial in a module",
        )
    with import_from_path(str(code)):
        found: Any = importlib.import_module(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not issubclass(found, PyTorchTrial):
        raise UsageError(f"{module_name} in {code} has no trial {name!r}", hint="give trial_class=…")
    return found
