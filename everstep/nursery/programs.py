"""Which commands the nursery can run, and what must be equal for its forks to be as a plain start would be.

Pure. Python reads some variables when it starts and torch reads some when it is imported: a warm process has read
them already, so a worker for which they differ must be started plainly."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_STARTED_WITH = "-u"  # the nursery itself is, so its forks need no more
_READ_EARLY = (
    "PYTHON", "PYTORCH", "TORCH", "ATEN_", "LD_", "GLIBC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_",
    "DNNL_", "ONEDNN_", "CUDA_", "NUMPY_", "NPY_", "LC_", "LANG", "HOME",
)  # fmt: skip
# Differ from worker to worker, or are set for workers alone, and are read when a group or a device is first used.
_NOT_READ_EARLY = ("TORCHELASTIC_", "TORCH_NCCL_", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonProgram:
    """What follows `python -u`: a script's path, or with `is_module` a module's name, and its arguments."""

    name: str
    args: tuple[str, ...]
    is_module: bool


def python_program(command: Sequence[str]) -> PythonProgram | None:
    """None: not a command of this interpreter that the nursery could run."""
    if list(command[:2]) != [sys.executable, _STARTED_WITH]:
        return None
    is_module = list(command[2:3]) == ["-m"]
    rest = command[3:] if is_module else command[2:]
    if not rest or (rest[0].startswith("-") and not is_module):
        return None
    return PythonProgram(name=rest[0], args=tuple(rest[1:]), is_module=is_module)


def read_early(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a warm process has read before its worker is known."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_EARLY) and not name.startswith(_NOT_READ_EARLY)
    }
