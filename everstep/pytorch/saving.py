"""A trial's checkpoints: what is in them, how they are named, and how a trial goes on from one."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from everstep.checkpoint import index
from everstep.checkpoint.checkpointer import Checkpointer
from everstep.checkpoint.code_snapshot import take_snapshot
from everstep.errors import CheckpointFailed, StateMismatch, UsageError
from everstep.pytorch import run_folder
from everstep.pytorch.context import PyTorchTrialContext
from everstep.pytorch.trial import PyTorchTrial

log = logging.getLogger("everstep")

FORMAT = 1
LOOK_S = 0.1  # at the world, while a save is waited for


class TrialCheckpoints:
    """In one place, by one Checkpointer. `told` hears the uuid and step of each one that has become durable; `is_void`
    says whether the world in which a save was begun is over, `is_chief` whether all depends on this worker."""

    def __init__(
        self,
        uri: str,
        *,
        hparams: Mapping[str, Any],
        metric: str | None,
        smaller_is_better: bool,
        keep_latest: int | None,
        keep_best: int,
        told: Callable[[str, int], None],
        is_void: Callable[[], bool],
        is_chief: Callable[[], bool],
    ) -> None:
        code = _code_folder()

        def make() -> Checkpointer:
            return Checkpointer(
                uri,
                keep_latest=keep_latest,
                keep_best=keep_best,
                metric=metric,
                mode="min" if smaller_is_better else "max",
                hparams=hparams,
                code=code,
            )

        self._make, self._hparams = make, hparams
        self._checkpointer = make()
        self.uri = self._checkpointer.uri
        self._told, self._is_void, self._is_chief = told, is_void, is_chief
        self._pending: int | None = None  # step of a save that nobody was told of yet

    def uuid(self, step: int) -> str:
        return index.checkpoint_uuid(self.uri, step)

    def load(self, step: int | str = "latest") -> dict[str, Any] | None:
        state: dict[str, Any] | None = self._checkpointer.load(step)
        return state

    def check_hparams(self) -> None:
        """What was loaded must be of the same run: with another learning rate, its optimizer would keep the old one."""
        loaded = self._checkpointer.loaded
        was, now = (loaded.hparams or {}) if loaded is not None else {}, self._hparams
        if run_folder.digest_of(was) != run_folder.digest_of(now):
            changes = [
                f"{key} was {was.get(key, 'not there')}, is {now.get(key, 'not there')}"
                for key in sorted({*was, *now})
                if was.get(key) != now.get(key)
            ]
            raise UsageError(
                f"{self.uri} has checkpoints of a run with other hyperparameters: {', '.join(changes[:5])}",
                hint="give each run its own place; fit(latest_checkpoint=UUID) begins with the weights of another run",
            )

    def save(self, step: int, state: dict[str, Any], metrics: Mapping[str, float]) -> str:
        """Returns when the state is copied; the rest goes on beside the training."""
        self.finish()
        if self._checkpointer.save(step, state, metrics=metrics) or not self._is_chief():
            self._pending = step
        return self.uuid(step)

    def save_alone(self, step: int, state: dict[str, Any], metrics: Mapping[str, float]) -> str:
        """By this worker, whatever the others do; returns when it is durable."""
        with self._make() as checkpointer:
            checkpointer.save(step, state, metrics=metrics, wait=True)
        self._pending = step
        self._tell()
        return self.uuid(step)

    def finish(self) -> bool:
        """Wait until the last save is durable, and tell of it. False: it cannot be, which was logged, or the share of a
        lost worker does not come."""
        if self._pending is None:
            return True
        try:
            while not self._checkpointer.wait(LOOK_S):
                if self._is_void():
                    log.warning("the checkpoint of batch %d is not whole: the world has changed", self._pending)
                    self._pending = None
                    return False
        except CheckpointFailed as failed:
            log.error("%s", failed)
            self._pending = None
            return False
        self._tell()
        return True

    def _tell(self) -> None:
        step, self._pending = self._pending, None
        assert step is not None
        self._told(self.uuid(step), step)

    def record(self, step: int) -> None:
        """So that it is found by its uuid; for the chief."""
        index.record(self.uuid(step), self.uri, step)

    def close(self) -> None:
        self._checkpointer.close()


def contents(trial: PyTorchTrial, context: PyTorchTrialContext, **parts: Any) -> dict[str, Any]:
    """The state. Models and optimizers as they are: the Checkpointer copies them beside the next batch."""
    kind = type(trial)
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return {
        "format": FORMAT,
        "trial": {"class": f"{kind.__module__}:{kind.__qualname__}", "script": Path(main).name if main else ""},
        "experiment": context.get_experiment_config(),
        "models": list(context.models),
        "optimizers": list(context.optimizers),
        "schedulers": [each.scheduler for each in context.lr_schedulers],
        "scaler": context.scaler,
        "gathered": [context.gathered[id(optimizer)] for optimizer in context.optimizers],
        **parts,
    }


def check_format(state: Any, name: str) -> None:
    found = state.get("format") if isinstance(state, dict) else None
    if found != FORMAT:
        raise UsageError(
            f"{name} was not saved by a Trainer of this version (format {found!r}, not {FORMAT})",
            hint="everstep.Checkpointer(uri).load() gives its state",
        )


def restore(state: dict[str, Any], context: PyTorchTrialContext, name: str) -> None:
    """Models, optimizers, schedulers and the scaler, as they were."""
    for kind, objects in (
        ("models", context.models),
        ("optimizers", context.optimizers),
        ("schedulers", [each.scheduler for each in context.lr_schedulers]),
    ):
        if len(state[kind]) != len(objects):
            raise StateMismatch(
                f"{name} holds {len(state[kind])} {kind}, this trial has wrapped {len(objects)}",
                hint="load it with the code that it was saved with, or begin anew in another place",
            )
        for number, (thing, saved) in enumerate(zip(objects, state[kind], strict=True)):
            _load(thing, saved, f"{name}: {kind}[{number}]")
    if (state["scaler"] is None) != (context.scaler is None):
        raise StateMismatch(
            f"{name} was saved {'without' if state['scaler'] is None else 'with'} a GradScaler",
            hint="use the same kind of mixed precision as before",
        )
    if context.scaler is not None:
        context.scaler.load_state_dict(state["scaler"])
    for optimizer, saved in zip(context.optimizers, state["gathered"], strict=True):
        context.gathered[id(optimizer)].load_state_dict(saved)


def _load(thing: Any, saved: Any, where: str) -> None:
    try:
        thing.load_state_dict(saved)
    except (RuntimeError, ValueError, KeyError) as error:  # torch's, for shapes and names
        raise StateMismatch(
            f"{where} does not fit: {error}",
            hint="load it with the code that it was saved with, or begin anew in another place",
        ) from error


def _code_folder() -> Path | None:
    """Where the script is, else where we are; None if that is no code."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    folder = Path(main).resolve().parent if main else Path.cwd()
    try:
        taken = take_snapshot(folder)
        log.info("checkpoints are saved with the code in %s: %s", folder, taken.files.summary)
    except (UsageError, OSError) as error:
        log.warning("checkpoints are saved without code: %s", error)
        return None
    return folder
