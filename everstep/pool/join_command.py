"""What a node of a pool runs: the pool file's setup lines, then `everstep pool join`. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everstep.pool.pool_file import PoolSection


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinPlace:
    """Where a pool's nodes join, as seen from the nodes."""

    pool: str
    coordinator: str
    token_file: str = ""  # empty: the token is in the environment


def join_words(section: PoolSection, place: JoinPlace, options: Mapping[str, str]) -> Sequence[str]:
    """The words after `everstep`."""
    given = {
        "--coordinator": place.coordinator,
        **({"--token-file": place.token_file} if place.token_file else {}),
        "--slots": str(section.slots_per_node),
        "--patience": f"{section.patience:g}",
        **options,
    }
    return ["pool", "join", place.pool, *(word for pair in given.items() for word in pair)]


def everstep_of(python: str) -> Sequence[str]:
    """The command `everstep`, run by this Python or another one."""
    return [python or sys.executable, "-u", "-m", "everstep"]
