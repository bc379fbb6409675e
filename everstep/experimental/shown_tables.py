"""How the client's objects look in a notebook: tables of HTML, in which every text is only text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from typing import Any, Generic, Protocol, TypeVar

MOST_ROWS = 200  # of a list in a notebook
_MOST_CHARS = 400  # of a cell

Facts = Sequence[tuple[str, object]]


class ShownObject:
    """An object with a name of its kind, and its facts. The first ones distinguish it from others."""

    def facts(self) -> Facts:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{_cell(name)}</th><td>{_cell(value)}</td></tr>" for name, value in self.facts())
        return f"<table>{rows}</table>"


class _HasFacts(Protocol):
    def facts(self) -> Facts: ...


T = TypeVar("T", bound=_HasFacts)


class ShownList(list[T], Generic[T]):
    """A list that a notebook shows as one table."""

    def _repr_html_(self) -> str:
        if not self:
            return "<p>none</p>"
        head = "".join(f"<th>{_cell(name)}</th>" for name, _ in self[0].facts())
        rows = "".join(_row(value for _, value in each.facts()) for each in self[:MOST_ROWS])
        more = f"<p>and {len(self) - MOST_ROWS} more</p>" if len(self) > MOST_ROWS else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"


def _row(cells: Iterable[object]) -> str:
    return f"<tr>{''.join(f'<td>{_cell(each)}</td>' for each in cells)}</tr>"


def _cell(value: object) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return escape(text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}…")


def time_of(seconds: float | None) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}" if seconds else ""


def named(values: dict[str, Any]) -> str:
    """lr 0.1, layers 3."""
    return ", ".join(f"{name} {_short(value)}" for name, value in values.items())


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
