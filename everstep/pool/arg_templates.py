"""Arguments of a trial's script: `{lr}` becomes the hyperparameter of that name, `{optimizer.lr}` a nested one.

`{{` and `}}` are braces. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from everstep.errors import UsageError

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def fill(args: Iterable[str], hparams: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(_filled(arg, hparams) for arg in args)


def _filled(arg: str, hparams: Mapping[str, Any]) -> str:
    return _PART.sub(lambda part: _value(part, arg, hparams), arg)


def _value(part: re.Match[str], arg: str, hparams: Mapping[str, Any]) -> str:
    if part[0] in ("{{", "}}"):
        return part[0][0]
    if part[1] is None:
        hint = "write {{ or }} for a brace, and {name} for a hyperparameter"
        raise UsageError(f"the argument {arg!r} has a single {part[0]}", hint=hint, code="argument-brace-unmatched")
    found: Any = hparams
    for name in part[1].split("."):
        if not isinstance(found, Mapping) or name not in found:
            hint = f"there are {', '.join(hparams) or 'no hyperparameters'}; write {{{{ for a brace"
            message = f"the argument {arg!r} names the hyperparameter {part[1]!r}, which the trial does not have"
            raise UsageError(message, hint=hint, code="argument-hyperparameter-unknown")
        found = found[name]
    return found if isinstance(found, str) else json.dumps(found)
