"""Whether a pool has the environment that an experiment asks for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def images_of(config: Mapping[str, Any]) -> frozenset[str]:
    """The images that an experiment's file names; Determined's files may name one for each kind of machine."""
    section = config.get("environment")
    given = config.get("image") or (section.get("image") if isinstance(section, Mapping) else None)
    values = given.values() if isinstance(given, Mapping) else [given]
    return frozenset(value for value in values if isinstance(value, str) and value)


def image_problem(wanted: Collection[str], pool: str, images: Mapping[str, Collection[str]]) -> tuple[str, str] | None:
    """The problem and the way out, or None. `images`: of each pool's nodes; "" for a node without an image, which takes
    every experiment, because it always runs its own Python."""
    here = images.get(pool, ())
    if not wanted or not here or "" in here or set(wanted) & set(here):
        return None
    names = " or ".join(sorted(wanted))
    there = sorted(name for name, found in images.items() if set(wanted) & set(found))
    if there:
        hint = f"use a pool that has it: {', '.join(there)}; or leave `image` out of the file"
    else:
        hint = "no pool has it: leave `image` out of the file, or add a pool with this image"
    return f"the file names the image {names}, but the nodes of pool {pool} run {', '.join(sorted(here))}", hint
