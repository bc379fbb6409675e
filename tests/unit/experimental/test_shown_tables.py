"""What a notebook shows: tables in which every text is only text."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from everstep.experimental.shown_tables import MOST_ROWS, Facts, ShownList, ShownObject

HOSTILE = "<script>alert('x')</script>&\"<img src=x onerror=alert(1)>"


class Thing(ShownObject):
    def __init__(self, **facts: Any) -> None:
        self._facts = facts

    def facts(self) -> Facts:
        return list(self._facts.items())


class Cells(HTMLParser):
    """The texts of a table, and which tags it has."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        assert not attrs
        if tag in ("td", "th", "p"):
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        self.texts[-1] += data


def test_an_object_is_a_table_of_its_facts() -> None:
    found = Cells(Thing(name="digits", best=0.123456789, owner=None)._repr_html_())
    assert found.texts == ["name", "digits", "best", "0.123457", "owner", ""]


@pytest.mark.parametrize("shown", [Thing(name=HOSTILE), ShownList([Thing(name=HOSTILE)])], ids=["one", "list"])
def test_hostile_text_is_shown_as_text(shown: Any) -> None:
    found = Cells(shown._repr_html_())
    assert HOSTILE in found.texts and found.tags <= {"table", "thead", "tbody", "tr", "th", "td"}


def test_a_list_is_one_table_and_says_how_many_it_leaves_out() -> None:
    few = Cells(ShownList([Thing(a=1, b="x"), Thing(a=2, b="y")])._repr_html_())
    assert few.texts == ["a", "b", "1", "x", "2", "y"]
    many = Cells(ShownList([Thing(a=each) for each in range(MOST_ROWS + 5)])._repr_html_())
    assert many.texts[-1] == "and 5 more" and len(many.texts) == 1 + MOST_ROWS + 1
    assert Cells(ShownList()._repr_html_()).texts == ["none"]


def test_a_long_text_is_cut() -> None:
    assert max(map(len, Cells(Thing(notes="x" * 10_000)._repr_html_()).texts)) < 1000
