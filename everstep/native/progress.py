"""How far a native loop has come, reported now and then by its first worker: epoch, steps, loss."""

from __future__ import annotations

import time

from everstep.data.loader import DataLoader
from everstep.engine.step import Engine
from everstep.events import emit
from everstep.native.logged import Logged

_EVERY_S = 0.5  # numbers that change faster cannot be read


class ProgressReporter:
    def __init__(self, engine: Engine, loader: DataLoader | None, logged: Logged) -> None:
        self._engine, self._loader, self._logged = engine, loader, logged
        self._reported_at = float("-inf")
        self.num_epochs: int | None = None  # of `trainer.epochs`; None: unknown

    def report(self) -> None:
        """With a commit."""
        now = time.monotonic()
        if self._engine.world.rank or self._loader is None or now - self._reported_at < _EVERY_S:
            return
        self._reported_at = now
        steps = len(self._loader)
        emit(
            "training.progress",
            step=self._engine.step,
            epoch=self._loader.position.epoch,
            num_epochs=self.num_epochs,
            num_steps=steps * self.num_epochs if self.num_epochs else None,
            loss=self._logged.last.get("loss"),
        )
