"""Checks a folder of checkpoints: every number in a state of scripts/save.py must equal its step."""

from __future__ import annotations

from pathlib import Path

import everstep


def load_step(folder: Path) -> int:
    """The step of the newest checkpoint; -1: there is none."""
    with everstep.Checkpointer(folder) as checkpointer:
        state = checkpointer.load()
    if state is None:
        return -1
    step = int(state["step"])
    for name, tensor in state["model"].items():
        assert (tensor == step).all(), f"{name} of step {step} holds {tensor.unique().tolist()[:5]}"
    assert state["history"] == list(range(1, step + 1))
    return step
