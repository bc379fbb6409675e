"""Hyperparameters as rows and columns show them: nested ones by names with dots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def flat(hparams: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """optimizer.name, adam"""
    for name, value in hparams.items():
        if isinstance(value, dict):
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
