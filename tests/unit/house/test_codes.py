"""Every error of Everstep has a code: programs and tests compare it, and sentences may change."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import everstep
from everstep import errors

PACKAGE = Path(everstep.__file__).parent
OURS = {
    name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.EverstepError)
}


def raised() -> Iterator[tuple[str, ast.Call]]:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _name(node.func) in OURS:
                yield str(path.relative_to(PACKAGE)), node


def _name(function: ast.expr) -> str:
    """`click.UsageError` is not ours."""
    return function.id if isinstance(function, ast.Name) else ""


def _code(call: ast.Call) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == "code"), None)


def test_every_error_has_a_code() -> None:
    without = [f"{path}:{call.lineno}" for path, call in raised() if _code(call) is None]

    assert without == []


def test_a_code_is_a_few_plain_words() -> None:
    found = {code.value for _, call in raised() if isinstance(code := _code(call), ast.Constant)}

    assert [code for code in found if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", str(code))] == []
    assert len(found) > 300
