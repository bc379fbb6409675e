"""The operations that a search program may send, as plain data, all checked before any is carried out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from everstep.errors import UsageError

CREATE, VALIDATE_AFTER, CLOSE, PROGRESS, SHUTDOWN = "create", "validate_after", "close", "progress", "shutdown"
_FIELDS = {
    CREATE: {"request_id", "hparams", "checkpoint"},
    VALIDATE_AFTER: {"request_id", "length"},
    CLOSE: {"request_id"},
    PROGRESS: {"progress"},
    SHUTDOWN: {"cancel", "failure"},
}
_LEAVES_OUT = {CREATE: {"checkpoint"}, SHUTDOWN: {"cancel", "failure"}}  # what may be missing
_MOST_LENGTH, _MOST_NAME = 2**53, 128


def check_operations(operations: Sequence[Mapping[str, Any]], known: Collection[str], most_trials: int) -> None:
    """Raise if one of them cannot be carried out after those before it. `known`: trials by their request_id."""
    created: set[str] = set()
    for operation in operations:
        _check_form(operation)
        name = operation.get("request_id", "")
        if operation["kind"] == CREATE:
            if name in known or name in created:
                raise _refusal(operation, f"trial {name} was already created", "search-program-trial")
            created.add(name)
        elif name and name not in known and name not in created:
            raise _refusal(operation, f"there is no trial {name}", "search-program-trial")
    if (number := len(known) + len(created)) > most_trials:
        raise UsageError(
            f"the search program wants {number} trials; at most {most_trials} are allowed",
            hint="end the search with Shutdown(), and start another",
            code="search-program-trials",
        )


def _check_form(operation: Mapping[str, Any]) -> None:
    kind = operation.get("kind")
    if kind not in _FIELDS:
        raise _refusal(operation, f"kind must be one of {', '.join(_FIELDS)}")
    fields = operation.keys() - {"kind"}
    if fields - _FIELDS[kind] or _FIELDS[kind] - _LEAVES_OUT.get(kind, set()) - fields:
        raise _refusal(operation, f"its fields are {', '.join(sorted(_FIELDS[kind]))}")
    for name in fields:
        if (problem := _problem(name, operation[name])) is not None:
            raise _refusal(operation, f"{name} must be {problem}")


def _problem(name: str, value: Any) -> str | None:
    if name == "request_id":
        return None if isinstance(value, str) and 0 < len(value) <= _MOST_NAME else "a UUID"
    if name == "hparams":
        return None if isinstance(value, Mapping) else "a mapping"
    if name == "checkpoint":
        is_found = isinstance(value, Mapping) and {"uuid", "uri", "step"} == value.keys()
        return None if value is None or is_found else "a UUID or None"
    if name == "length":
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return None if is_whole and 1 <= value <= _MOST_LENGTH else f"a whole number from 1 to {_MOST_LENGTH}"
    if name == "progress":
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if is_number and 0 <= value <= 1 else "a number from 0 to 1"
    return None if isinstance(value, bool) else "true or false"


def _refusal(operation: Mapping[str, Any], hint: str, code: str = "search-program-operation") -> UsageError:
    return UsageError(f"invalid operation from the search program: {dict(operation)}", hint=hint, code=code)
