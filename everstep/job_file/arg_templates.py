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


def check(args: Iterable[str], hyperparameters: Mapping[str, Any]) -> None:
    """Before anything starts: of nested names, only the first, since ranges may hold maps."""
    for arg in args:
        for part in _PART.finditer(arg):
            if part[1] is not None and part[1].split(".")[0] not in hyperparameters:
                raise _unknown(part[1], arg, hyperparameters)
            if part[0] in ("{", "}"):
                raise _single(part[0], arg)


def _filled(arg: str, hparams: Mapping[str, Any]) -> str:
    return _PART.sub(lambda part: _value(part, arg, hparams), arg)


def _value(part: re.Match[str], arg: str, hparams: Mapping[str, Any]) -> str:
    if part[0] in ("{{", "}}"):
        return part[0][0]
    if part[1] is None:
        raise _single(part[0], arg)
    found: Any = hparams
    for name in part[1].split("."):
        if not isinstance(found, Mapping) or name not in found:
            raise _unknown(part[1], arg, hparams)
        found = found[name]
    return found if isinstance(found, str) else json.dumps(found)


def _single(brace: str, arg: str) -> UsageError:
    hint = "write {{ or }} for a brace, and {name} for a hyperparameter"
    return UsageError(f"the argument {arg!r} has a single {brace}", hint=hint, code="argument-brace-unmatched")


def _unknown(name: str, arg: str, hparams: Mapping[str, Any]) -> UsageError:
    hint = f"there are {', '.join(hparams) or 'no hyperparameters'}; write {{{{ for a brace"
    message = f"the argument {arg!r} names the hyperparameter {name!r}, which the trial does not have"
    return UsageError(message, hint=hint, code="argument-hyperparameter-unknown")
