"""One .pt file out of a checkpoint: the state as torch.save writes it, for programs that read nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from everstep.checkpoint import strict_json
from everstep.checkpoint.catalog import Found
from everstep.checkpoint.load import read_state
from everstep.errors import UsageError
from everstep.storage.base import Storage


def export_pt(storage: Storage, found: Found, target: Path, *, only: str = "") -> None:
    """`only`: this entry of the state alone."""
    if found.manifest is None or found.problem:
        strict_json.broken_text(found.problem)
    state = read_state(storage, found.manifest)
    for key in only.split(".") if only else ():
        if not isinstance(state, dict) or key not in state:
            raise UsageError(f"the state has no entry {only!r}", hint="`everstep checkpoint show` lists the names")
        state = state[key]
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(aside, "xb") as out:
            torch.save(state, out)
            out.flush()
            os.fsync(out.fileno())
        os.rename(aside, target)
    finally:
        aside.unlink(missing_ok=True)
