"""One worker's view of a generation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    generation: int
    rank: int
    size: int
    continues: int = 0  # the leader must have settled in this generation or a later one
    store_address: str = ""  # rank 0's key-value store
    store_port: int = 0
    job: str = ""  # a store that is another job's by now has none of our keys
    reason: str = ""
    is_fixed: bool = False  # no generation follows: what a peer leaves behind when it ends stays as it is

    @property
    def peers(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(self.size) if rank != self.rank)


ALONE = World(generation=0, rank=0, size=1, reason="not in a generation")
REHEARSAL = World(generation=0, rank=1, size=2, reason="a rehearsal")  # not rank 0, which writes for all
