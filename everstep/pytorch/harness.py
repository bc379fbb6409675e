"""Train a trial that is a class: `python -m everstep.pytorch.harness model_def:MyTrial`.

The class comes from a module of the working directory. Hyperparameters, lengths, and periods are those of the job file
or of the experiment, in which the search decides how long to train."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import pytorch
from everstep.core.cluster_info import experiment_config
from everstep.errors import UsageError
from everstep.pytorch.trial import PyTorchTrial

_USE = "python -m everstep.pytorch.harness MODULE:CLASS"


def main(args: Sequence[str]) -> None:
    if len(args) != 1:
        raise UsageError(f"expected one argument, not {len(args)}", hint=_USE, code="harness-arguments")
    kind, config = find_class(args[0]), experiment_config()
    with pytorch.init(exp_conf=config, aggregation_frequency=_aggregation(config)) as context:
        pytorch.Trainer(kind(context), context).fit()


def find_class(entrypoint: str) -> type[PyTorchTrial]:
    """`module:Class`, or `package.module:Outer.Class`."""
    module_name, _, name = entrypoint.partition(":")
    if not module_name or not name:
        raise UsageError(f"not MODULE:CLASS: {entrypoint!r}", hint=_USE, code="entrypoint-not-a-class")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(
            f"there is no module {error.name} in {here}", hint=_USE, code="entrypoint-module-missing"
        ) from None
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not issubclass(found, PyTorchTrial):
        raise UsageError(
            f"{module_name} has no trial class {name!r}",
            hint="derive it from everstep.pytorch.PyTorchTrial",
            code="entrypoint-not-a-class",
        )
    return found


def _aggregation(config: Mapping[str, Any]) -> int:
    return int((config.get("optimizations") or {}).get("aggregation_frequency") or 1)


if __name__ == "__main__":
    main(sys.argv[1:])
