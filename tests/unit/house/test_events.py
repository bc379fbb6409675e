"""Every event of the package is declared once, and the list in docs/testing.md comes from the declarations."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep import events

ROOT = Path(__file__).parents[3]


@pytest.fixture
def fictitious(monkeypatch):
    monkeypatch.setattr(events, "declared", list(events.declared))
    events.declare("kettle.boiled", events.WORKER, "step", "tea is ready", degrees=float)


def emit_from_the_package(event: str, **facts: object) -> None:
    exec("emit(event, **facts)", {"__name__": "everstep.kettle", "emit": events.emit, "event": event, "facts": facts})


def test_an_event_that_is_declared_in_one_line_is_documented_and_can_be_emitted(fictitious) -> None:
    assert "| `kettle.boiled` | worker | `step` int, `degrees` float | tea is ready |" in events.markdown()
    emit_from_the_package("kettle.boiled", step=3, degrees=100)


def test_an_undeclared_event_fails() -> None:
    with pytest.raises(TypeError, match="kettle.boiled is not declared"):
        emit_from_the_package("kettle.boiled", step=3)


@pytest.mark.parametrize(
    "facts", [{"step": 3}, {"step": 3, "degrees": "hot"}, {"step": 3, "degrees": 1.0, "color": "red"}]
)
def test_a_missing_wrong_or_unknown_field_fails(fictitious, facts) -> None:
    with pytest.raises(TypeError, match="kettle.boiled is declared with"):
        emit_from_the_package("kettle.boiled", **facts)


def test_a_script_may_emit_what_it_likes() -> None:
    events.emit("kettle.boiled", anything="goes")


def test_every_event_in_the_source_is_declared_with_its_fields() -> None:
    found = list(emitted())
    assert len(found) > 20
    declared = [(each.name, frozenset(each.fields)) for each in events.declared]
    for where, name, fields in found:
        assert (name, fields) in declared or (fields is None and name in dict(declared)), f"{where}: {name} {fields}"
    names = {name for _, name, _ in found}
    unused = {each.name for each in events.declared} - names
    # Named by a worker's status, an attempt's or a generation's.
    assert all(name.startswith(("worker.", "attempt.", "generation.")) for name in unused), unused


def emitted() -> Iterator[tuple[str, str, frozenset[str] | None]]:
    """Each `emit("name", …)`: where, its name, and its fields unless they come from a dictionary."""
    for path in sorted((ROOT / "everstep").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "emit":
                fields = [keyword.arg for keyword in node.keywords]
                for name in names_of(node.args[0]):
                    yield f"{path}:{node.lineno}", name, None if None in fields else frozenset(map(str, fields))


def names_of(node: ast.expr) -> list[str]:
    if isinstance(node, ast.IfExp):
        return names_of(node.body) + names_of(node.orelse)
    return [str(node.value)] if isinstance(node, ast.Constant) else []
