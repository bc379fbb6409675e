"""Write the tables of docs/configuration.md that come from declarations: `python tools/configuration_tables.py`.

Each table is between the comments `<!-- NAME: … -->` and `<!-- end of NAME -->`; the rest of the page stays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from everstep import env
from everstep.settings import settings_of
from everstep.wire import Policy

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
_BY = "written by tools/configuration_tables.py"


def policy_rows(kind: Any = Policy) -> Iterator[str]:
    yield "| field | option | job file | default | meaning |"
    yield "| --- | --- | --- | --- | --- |"
    declared = settings_of(kind)
    for each in fields(kind):
        setting = declared[each.name]
        key = f"`{setting.section}.{each.name}`" if setting.section else ""
        meaning = ". ".join(filter(None, [setting.text, setting.details]))
        yield f"| `{each.name}` | `{setting.option_of(each.name)}` | {key} | `{each.default}` | {meaning} |"


def variable_rows() -> Iterator[str]:
    yield "| variable | default | meaning |"
    yield "| --- | --- | --- |"
    for each in env.VARIABLES.values():
        yield f"| `{each.name}` | {each.default} | {each.meaning} |"


def with_tables(page: str, kind: Any = Policy) -> str:
    """The page with its tables as the declarations are now."""
    for name, rows in (("policy", policy_rows(kind)), ("variables", variable_rows())):
        table = "\n".join([f"<!-- {name}: {_BY} -->", *rows, f"<!-- end of {name} -->"])
        (old,) = re.findall(rf"<!-- {name}: .*?<!-- end of {name} -->", page, flags=re.DOTALL)
        page = page.replace(old, table)
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
