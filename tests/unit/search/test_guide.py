"""docs/search.md: its snippet runs, its spaces are read, and what differs from Determined is in its table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from unit.search.determined import NOT_COPIED

from everstep.search.read_space import read_space

PAGE = (Path(__file__).parents[3] / "docs" / "search.md").read_text()


def test_the_snippet_runs(capsys):
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(snippet, "docs/search.md", "exec"), {})
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "((9, 58), (5, 234), (2, 937))" and len(said) == 3


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_the_spaces_are_read(text):
    space = read_space(yaml.safe_load(text)["hyperparameters"])
    assert 1e-5 <= space.sample(1, 1)["learning_rate"] < 1e-1


def test_what_is_not_copied_is_in_the_table():
    assert {reason for reason in NOT_COPIED.values() if f"| {reason} |" not in PAGE} == set()
