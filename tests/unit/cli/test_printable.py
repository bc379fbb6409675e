"""What a job prints and how it names things is shown as text: no terminal obeys it."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from everstep.cli.logs import shown_line
from everstep.cli.printable import printable
from everstep.cli.tables import table
from everstep.wire import LoggedLine


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext äöü", "plain\ttext äöü"),
        ("\x1b[1;32mINFO\x1b[0m: done", "INFO: done"),
        ("\x1b]0;renamed\x07", "\\x1b]0;renamed\\x07"),
        ("\x1b[2J\x1b[H", "\\x1b[2J\\x1b[H"),
        ("\x9b2J", "\\x9b2J"),
        ("a\rb\x00", "a\\rb\\x00"),
        ("\u202etxt.exe", "\\u202etxt.exe"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_are_shown_and_colors_left_out(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_line_of_a_log_cannot_clear_the_screen() -> None:
    line = LoggedLine(worker="w0", node="n0", rank=0, line=0, time=1.0, level=20, stream="stdout", text="\x1b[2Jx")
    assert shown_line(line, is_one=False) == "n0 | [w0] \\x1b[2Jx"


def test_a_name_in_a_table_is_neither_markup_nor_obeyed() -> None:
    console = Console(file=StringIO(), width=100)
    console.print(table("[bold]of[/] \x1b]0;x\x07", ("name", "step"), [("[red]loss[/nonsense]", 1)], caption="[/]"))

    printed = console.file.getvalue()
    assert "[red]loss[/nonsense]" in printed
    assert "[bold]of[/] \\x1b]0;x\\x07" in printed
    assert "\x1b" not in printed
