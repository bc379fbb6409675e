"""examples/02_native_loop is examples/01_plain_ddp with a few lines changed."""

from __future__ import annotations

from difflib import SequenceMatcher
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def lines(path: Path) -> list[str]:
    """Without the docstring, empty lines and indentation: what moves to the right into a `with` stays as it is."""
    return [line.strip() for line in path.read_text().splitlines()[1:] if line.strip()]


def num_changed(before: list[str], after: list[str]) -> int:
    """A line that replaces another is one change, and so is each that is only added or only removed."""
    changes = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(max(i2 - i1, j2 - j1) for what, i1, i2, j1, j2 in changes if what != "equal")


def test_at_most_eight_lines_are_changed() -> None:
    plain, elastic = lines(EXAMPLES / "01_plain_ddp" / "ddp.py"), lines(EXAMPLES / "02_native_loop" / "train.py")
    assert 0 < num_changed(plain, elastic) <= 8
