"""How far a native loop has come, told now and then by its first worker for whoever watches: epoch, steps, loss."""

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
        self._told_at = float("-inf")
        self.num_epochs: int | None = None  # of `trainer.epochs`; None: nobody knows how long it will take

    def tell(self) -> None:
        """With a commit."""
        now = time.monotonic()
        if self._engine.world.rank or self._loader is None or now - self._told_at < _EVERY_S:
            return
        self._told_at = now
        steps = len(self._loader)
        emit(
            "training.progress",
            step=self._engine.step,
            epoch=self._loader.position.epoch,
            num_epochs=self.num_epochs,
            num_steps=steps * self.num_epochs if self.num_epochs else None,
            loss=self._logged.last.get("loss"),
        )
