"""Read untrusted JSON: nothing runs, nothing is guessed, and each error names its place.

Pure. Knows nothing of checkpoints but their error."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from everstep.errors import CheckpointBroken

HINT = "the file is damaged or not from Everstep: load another checkpoint (`everstep checkpoint verify` checks all)"


def broken(where: str, what: str, *, offset: int | None = None) -> NoReturn:
    at = f" at byte {offset:,}" if offset is not None else ""
    broken_text(f"{where}{at}: {what}")


def broken_text(text: str) -> NoReturn:
    raise CheckpointBroken(text, hint=HINT, code="checkpoint-damaged")


def parse_json(text: bytes, where: str, *, offset: int = 0) -> Any:
    """The value, or CheckpointBroken that names the byte. A key must not occur twice: readers disagree on it."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(items)
        if len(value) != len(items):
            seen: set[str] = set()
            for key, _ in items:
                if key in seen:
                    broken(where, f"key {key[:80]!r} occurs twice")
                seen.add(key)
        return value

    def constant(name: str) -> NoReturn:
        broken(where, f"expected JSON, found {name}")

    try:
        return json.loads(text.decode(), object_pairs_hook=pairs, parse_constant=constant)
    except UnicodeDecodeError as error:
        broken(where, "expected UTF-8", offset=offset + error.start)
    except json.JSONDecodeError as error:
        broken(where, f"expected JSON: {error.msg}", offset=offset + error.pos)
    except RecursionError:
        broken(where, "values are nested too deeply")
    except ValueError as error:  # an integer of thousands of digits
        broken(where, f"expected JSON: {error}")


def field(record: Any, name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """A field of an object, of the type that it must have. True is not taken for a number."""
    if not isinstance(record, dict):
        broken(where, f"expected an object, found {shown(record)}")
    if name not in record:
        broken(where, f"{name!r} is missing")
    value = record[name]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        broken(where, f"{name!r} must be {' or '.join(each.__name__ for each in kinds)}, found {shown(value)}")
    return value


def natural(record: Any, name: str, where: str) -> int:
    value = field(record, name, int, where)
    if value < 0:
        broken(where, f"{name!r} must not be negative, found {value}")
    return int(value)


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
