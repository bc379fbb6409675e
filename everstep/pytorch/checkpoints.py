"""A trial's checkpoints: what they hold, how they are named, how a trial resumes from one, and how one is loaded
without training: its code, its hyperparameters, its weights."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch

from everstep.checkpoint import index
from everstep.checkpoint.checkpointer import Checkpointer
from everstep.checkpoint.code_snapshot import take_snapshot
from everstep.checkpoint.download import has_state
from everstep.core import job_checkpoints
from everstep.core.distributed import EngineContext
from everstep.core.import_path import import_from_path
from everstep.engine.fixed_world import LoneMembership
from everstep.engine.step import Engine
from everstep.errors import CheckpointBroken, CheckpointFailed, NoCheckpoint, StateMismatch, UsageError
from everstep.ipc.progress_page import ProgressPage
from everstep.pytorch.context import PyTorchTrialContext
from everstep.pytorch.fit_plan import FitPlan
from everstep.pytorch.progress import without_search
from everstep.pytorch.run_folder import RunPaths, digest_of
from everstep.pytorch.trial import PyTorchTrial
from everstep.storage.base import full_uri, open_storage
from everstep.storage.code_archive import Code
from everstep.wire.metrics import to_value
from everstep.wire.trials import CheckpointReport

log = logging.getLogger("everstep")

FORMAT = 1
_OTHER_CODE = "load it with the code it was saved with, or train from scratch in another place"
_OTHER_SHAPE = "use the code of the checkpoint's trial, and fix the hyperparameters that shape the model to its values"
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
POLL_S = 0.1  # how often to check whether the world has changed, while waiting for a save


class TrialCheckpoints:
    """In one place, by one Checkpointer. `on_durable` gets the uuid and step of each checkpoint once it is durable."""

    def __init__(
        self, paths: RunPaths, plan: FitPlan, context: PyTorchTrialContext, on_durable: Callable[[str, int], None]
    ) -> None:
        self._make = partial(
            Checkpointer,
            paths.checkpoints,
            keep_latest=paths.keep_latest,
            keep_best=paths.keep_best,
            metric=plan.metric,
            mode="min" if plan.smaller_is_better else "max",
            hparams=context.get_hparams(),
            code=_own_code(),
        )
        self._checkpointer = self._make()
        self.uri = self._checkpointer.uri
        self._context, self._on_durable = context, on_durable
        self._pending: int | None = None  # step of a save that was not reported yet
        self._digests: dict[int, str] = {}  # of weights, by step

    def uuid(self, step: int) -> str:
        return index.checkpoint_uuid(self.uri, step)

    def note_digest(self, step: int, digest: str) -> None:
        """Of the weights of a checkpoint that is saved, or was loaded."""
        self._digests = {**self._digests, step: digest}  # replaced: another thread reads it

    def report(self, uuid: str, step: int) -> CheckpointReport:
        """What its manifest says. Reads it from storage: from any thread."""
        with closing(open_storage(self.uri)) as storage:
            manifest = index.newest_of_step(storage, step, uuid).manifest
        assert manifest is not None
        return CheckpointReport(
            uuid=uuid,
            uri=full_uri(self.uri),
            step=step,
            generation=manifest.generation,
            num_bytes=manifest.size_bytes,
            metrics={name: to_value(value) for name, value in manifest.metrics.items()},
            code=str((manifest.code or {}).get("sha256", "")),
            digest=self._digests.get(step, ""),
        )

    def load(self, step: int | str = "latest") -> dict[str, Any] | None:
        state: dict[str, Any] | None = self._checkpointer.load(step)
        return state

    def check_hparams(self) -> None:
        """The loaded checkpoint must be of the same run: with another learning rate, its optimizer would keep the old
        one."""
        loaded = self._checkpointer.loaded
        was, now = (loaded.hparams or {}) if loaded is not None else {}, self._context.get_hparams()
        if digest_of(was) != digest_of(now):
            changes = [
                f"{key} was {was.get(key, 'absent')}, is {now.get(key, 'absent')}"
                for key in sorted({*was, *now})
                if was.get(key) != now.get(key)
            ]
            raise UsageError(
                f"{self.uri} has checkpoints of a run with other hyperparameters: {', '.join(changes[:5])}",
                hint="give each run its own place; fit(latest_checkpoint=UUID) begins with the weights of another run",
                code="checkpoints-of-another-run",
            )

    def save(self, step: int, state: dict[str, Any], metrics: Mapping[str, float]) -> None:
        """Returns when the state is copied; the rest happens in the background."""
        self.finish()
        if self._checkpointer.save(step, state, metrics=metrics) or not self._context.is_chief:
            self._pending = step

    def save_alone(self, step: int, state: dict[str, Any]) -> str:
        """By this worker alone; returns when it is durable."""
        with self._make() as checkpointer:
            checkpointer.save(step, state, wait=True)
        self._pending = None
        self._on_durable(self.uuid(step), step)
        return self.uuid(step)

    def finish(self) -> bool:
        """Wait until the last save is durable, and report it. False: it failed, which was logged, or a lost worker's
        share is missing."""
        if (step := self._pending) is None:
            return True
        is_durable = False
        try:
            while not (is_durable := self._checkpointer.wait(POLL_S)):
                if self._context.engine.regrouping.is_closed:
                    log.warning("the checkpoint of batch %d is incomplete: the world has changed", step)
                    break
        except CheckpointFailed as failed:
            log.error("%s", failed)
        self._pending = None
        if is_durable:
            self._on_durable(self.uuid(step), step)
        return is_durable

    def close(self) -> None:
        self._checkpointer.close()


def check_format(state: Any, name: str) -> None:
    found = state.get("format") if isinstance(state, dict) else None
    if found != FORMAT:
        raise UsageError(
            f"{name} was not saved by a Trainer of this version (format {found!r}, not {FORMAT})",
            hint="everstep.Checkpointer(uri).load() returns its state",
            code="checkpoint-not-by-a-trainer",
        )


def restore(state: dict[str, Any], context: PyTorchTrialContext, name: str) -> None:
    """Models, optimizers, schedulers and the scaler."""
    for kind, objects in (
        ("models", context.models),
        ("optimizers", context.optimizers),
        ("schedulers", [each.scheduler for each in context.lr_schedulers]),
    ):
        if len(state[kind]) != len(objects):
            raise StateMismatch(
                f"{name} holds {len(state[kind])} {kind}, this trial has wrapped {len(objects)}",
                hint=_OTHER_CODE,
                code="checkpoint-holds-other-objects",
            )
        for number, (thing, saved) in enumerate(zip(objects, state[kind], strict=True)):
            _load(thing, saved, f"{name}: {kind}[{number}]")
    if (state["scaler"] is None) != (context.scaler is None):
        raise StateMismatch(
            f"{name} was saved {'without' if state['scaler'] is None else 'with'} a GradScaler",
            hint="use the same kind of mixed precision as before",
            code="checkpoint-scaler-differs",
        )
    if context.scaler is not None:
        context.scaler.load_state_dict(state["scaler"])
    for optimizer, saved in zip(context.optimizers, state["aggregated"], strict=True):
        context.aggregated[id(optimizer)].load_state_dict(saved)


def load_same(uuid: str, uri: str, step: int) -> dict[str, Any] | None:
    """The state of the same training by another trial, without what its search said; None: it is not there any more,
    and this trial trains from its beginning, to the same bits."""
    name = f"checkpoint {uuid}"
    try:
        with Checkpointer(uri) as checkpointer:
            state: dict[str, Any] | None = checkpointer.load(step)
    except (CheckpointBroken, NoCheckpoint, OSError) as error:
        log.warning("%s: %s", name, error)
        state = None
    if state is None:
        log.warning("%s is not there any more: training begins from the start", name)
        return None
    check_format(state, name)
    log.info("continuing %s, of batch %d", name, step)
    return {**state, "progress": without_search(state["progress"])}


def load_weights(uuid: str, uri: str, step: int, context: PyTorchTrialContext) -> None:
    """Those of another run's checkpoint, and nothing else of it. `uri`: its place, if it is known here."""
    if not uri:
        uri, step = job_checkpoints.find(uuid)
    with Checkpointer(uri) as checkpointer:
        state = checkpointer.load(step)
    name = f"checkpoint {uuid}"
    check_format(state, name)
    if len(state["models"]) != len(context.models):
        raise StateMismatch(
            f"{name} holds {len(state['models'])} models, this trial has wrapped {len(context.models)}",
            hint=_OTHER_CODE,
            code="checkpoint-holds-other-objects",
        )
    for number, (model, saved) in enumerate(zip(context.models, state["models"], strict=True)):
        _load(model, saved, f"{name}: models[{number}]", _OTHER_SHAPE)
    log.info("the weights are those of %s, of batch %d", name, step)


def _load(thing: Any, saved: Any, where: str, hint: str = _OTHER_CODE) -> None:
    try:
        thing.load_state_dict(saved)
    except (RuntimeError, ValueError, KeyError) as error:  # torch's, for shapes and names
        raise StateMismatch(f"{where} does not fit: {error}", hint=hint, code="checkpoint-does-not-fit") from error


def _own_code() -> Code | None:
    """Of the script's folder, otherwise of the working directory; None if it cannot be saved as code."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    folder = Path(main).resolve().parent if main else Path.cwd()
    try:
        taken = take_snapshot(folder)
    except (UsageError, OSError) as error:
        log.warning("checkpoints are saved without code: %s", error)
        return None
    log.info("checkpoints are saved with the code in %s: %s", folder, taken.files.summary)
    return taken


# --- a trial out of a checkpoint ---


class CheckpointLoadContext(PyTorchTrialContext):
    """For creating a trial outside of training, to use its models. It does not train, report or save."""

    def __init__(self, hparams: Mapping[str, Any] | None = None, exp_conf: Mapping[str, Any] | None = None) -> None:
        engine = Engine(lambda board, on_closed: LoneMembership(), ProgressPage(None))
        super().__init__(
            engine=engine,
            hparams=hparams or {},
            exp_conf=exp_conf or {},
            distributed=EngineContext(engine),
            device=torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu"),
            micro_batches=1,
        )


def load_trial_from_checkpoint_path(
    path: str,
    trial_class: type[PyTorchTrial] | None = None,
    trial_kwargs: Mapping[str, Any] | None = None,
    torch_load_kwargs: Mapping[str, Any] | None = None,
) -> PyTorchTrial:
    """The trial that saved it, with its weights, from a folder returned by client.get_checkpoint().

    The class comes from the checkpoint's code; if the script itself defined it, the script is imported. `trial_class`
    names another class. A trial that takes `hparams` gets those that it was trained with; `trial_kwargs` has its other
    arguments. `torch_load_kwargs` is accepted and has no effect: nothing is unpickled."""
    folder = Path(path)
    try:
        origin = json.loads((folder / "checkpoint.json").read_text())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{folder} is not a checkpoint: {error}", hint="client.get_checkpoint(uuid)", code="not-a-checkpoint-folder"
        ) from error
    with Checkpointer(folder if has_state(folder, origin["step"]) else origin["uri"]) as checkpointer:
        state = checkpointer.load(origin["step"])
        assert checkpointer.loaded is not None
        hparams = checkpointer.loaded.hparams
    check_format(state, f"checkpoint {origin.get('uuid', folder)}")
    if trial_class is None:
        trial_class = _trial_class(state["trial"], folder / "code")
    context = CheckpointLoadContext(hparams=hparams, exp_conf=state["experiment"])
    trial = trial_class(context, **_arguments(trial_class, trial_kwargs or {}, hparams))
    restore(state, context, f"checkpoint {origin.get('uuid', folder)}")
    return trial


def _arguments(kind: type[PyTorchTrial], given: Mapping[str, Any], hparams: Mapping[str, Any]) -> Mapping[str, Any]:
    _, *others = inspect.signature(kind).parameters.values()  # the first one is the context
    needed = [each.name for each in others if each.default is each.empty and each.kind not in _ANY_NUMBER]
    if "hparams" in needed and "hparams" not in given:
        given = {**given, "hparams": hparams}
    if missing := [name for name in needed if name not in given]:
        raise UsageError(
            f"{kind.__name__} needs the arguments {', '.join(missing)}",
            hint=f"load_trial_from_checkpoint_path(…, trial_kwargs={{{missing[0]!r}: …}})",
            code="trial-arguments-missing",
        )
    return given


def _trial_class(spec: Mapping[str, str], code: Path) -> type[PyTorchTrial]:
    module_name, _, name = spec["class"].partition(":")
    if module_name == "__main__":
        module_name = spec["script"].removesuffix(".py")
    if not module_name:
        raise UsageError(
            f"{name} was defined in a notebook or an interpreter, so its code was not saved",
            hint="give load_trial_from_checkpoint_path(…, trial_class=…), or define the trial in a module",
            code="trial-code-not-saved",
        )
    with import_from_path(str(code)):
        found: Any = importlib.import_module(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not issubclass(found, PyTorchTrial):
        raise UsageError(
            f"{code} has no trial {module_name}.{name}", hint="give trial_class=…", code="trial-class-not-found"
        )
    return found
