"""examples/README.md lists every example, each with a command whose script is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ROWS = re.findall(r"^\| \[([\w.]+)\]\(\S+\) \|.*\| `(.+)` \|$", (EXAMPLES / "README.md").read_text(), re.MULTILINE)


def test_every_example_is_listed() -> None:
    folders = {path.parent.name for path in EXAMPLES.glob("*/*.py")}
    assert {name for name, _ in ROWS} == folders | {path.name for path in EXAMPLES.glob("*.py")}


def test_every_command_names_a_script_of_its_example() -> None:
    for name, command in ROWS:
        if command != "make demo":
            script = re.sub(r"cd (\S+) && everstep e create (\S+) .*", r"\1/\2", command)
            (script,) = re.findall(r"examples/[\w./]+\.(?:py|yaml)", script)
            assert name in script
            assert (ROOT / script).is_file()
