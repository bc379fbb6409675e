"""The world of the engine, as `context.distributed` shows it."""

from __future__ import annotations

from typing import Any

from everstep import env
from everstep.engine.step import Engine


class EngineSource:
    """Ranks and sizes of the moment: they change when workers come and go."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def rank(self) -> int:
        return self._engine.world.rank

    @property
    def size(self) -> int:
        return self._engine.world.size

    @property
    def local_rank(self) -> int:
        return int(env.place_on_node())

    @property
    def local_size(self) -> int:
        return min(self.size, env.node_size() or 1)

    def gather(self, value: Any) -> list[Any]:
        said = self._engine.gather(value)
        return [value] if said is None else said
