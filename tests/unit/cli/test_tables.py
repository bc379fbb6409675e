"""Which columns of a table a terminal has room for."""

from __future__ import annotations

from everstep.cli.tables import fitting

COLUMNS = ("trial", "id", "state", "length", "reason")
ROWS = [(1, 1, "COMPLETED", "128/128", "0.665698 at 128 batches, the full length")]
GIVE_WAY = ("id", "length")


def shown(width: int, folded: tuple[str, ...] = ("reason",)) -> list[str]:
    return [COLUMNS[number] for number in fitting(COLUMNS, ROWS, width, give_way=GIVE_WAY, folded=folded)]


def test_a_wide_terminal_shows_all_columns() -> None:
    assert shown(120) == [*COLUMNS]


def test_columns_give_way_in_their_order_until_the_others_have_room() -> None:
    assert shown(52) == ["trial", "state", "length", "reason"]
    assert shown(45) == ["trial", "state", "reason"]
    assert shown(10) == ["trial", "state", "reason"], "the others always stay"


def test_a_text_that_cannot_be_continued_needs_its_whole_length() -> None:
    assert shown(57, folded=()) == ["trial", "state", "reason"]
