"""Write the tables of the docs that come from declarations: `python tools/docs_tables.py`.

Each table is between the comments `<!-- NAME: … -->` and `<!-- end of NAME -->`; the rest of a page stays."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from everstep import env, events
from everstep.doctor import world_needs
from everstep.job_file.fields import Section, blocks_in
from everstep.job_file.quantity import format_seconds
from everstep.job_file.schema import Job
from everstep.pool.pool_file import PersonSection, PoolSection
from everstep.settings import settings_of
from everstep.wire import Policy
from everstep.wire import operations as calls

DOCS = Path(__file__).parents[1] / "docs"
_BY = "written by tools/docs_tables.py"

Rows = Callable[[Any], Iterator[str]]


def policy_rows(kind: Any) -> Iterator[str]:
    yield "| field | option | job file | variable | default | meaning |"
    yield "| --- | --- | --- | --- | --- | --- |"
    declared = settings_of(kind)
    for each in fields(kind):
        setting = declared[each.name]
        key = f"`{setting.section}.{each.name}`" if setting.section else ""
        meaning = ". ".join(filter(None, [setting.text, setting.details]))
        variable = " ".join(f"`{name}`" for name in setting.variables_of(each.name))
        row = (f"`{each.name}`", f"`{setting.option_of(each.name)}`", key, variable, f"`{each.default}`", meaning)
        yield f"| {' | '.join(row)} |"


def variable_rows(_: Any) -> Iterator[str]:
    yield "| variable | default | meaning |"
    yield "| --- | --- | --- |"
    for each in env.VARIABLES.values():
        yield f"| `{each.name}` | {each.default} | {each.meaning} |"


def key_rows(_: Any) -> Iterator[str]:
    yield from _job_rows(lambda key: not key.startswith("platform."))


def platform_rows(_: Any) -> Iterator[str]:
    yield from _job_rows(lambda key: key.startswith("platform."))


def pool_rows(_: Any) -> Iterator[str]:
    yield from _rows(PoolSection, lambda key: not key.startswith(("platform.", "resources.", "volumes.")))


def person_rows(_: Any) -> Iterator[str]:
    yield from _rows(PersonSection, lambda key: True)


def _job_rows(is_wanted: Callable[[str], bool]) -> Iterator[str]:
    yield from _rows(Job, is_wanted)


def _rows(model: type[BaseModel], is_wanted: Callable[[str], bool]) -> Iterator[str]:
    yield "| key | default | meaning |"
    yield "| --- | --- | --- |"
    for key, default, meaning in job_keys(model):
        if is_wanted(key):
            yield f"| `{key}` | {default} | {meaning} |".replace("|  |", "| |")


def job_keys(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, str, str]]:
    """Each key of the job file, its default and its meaning."""
    for name, field in model.model_fields.items():
        blocks = list(blocks_in(field.annotation))
        meaning = field.description or ("Options, as below." if blocks else "")
        default = _shown(field.get_default(call_default_factory=True))
        yield path + name, _POLICY_DEFAULTS.get(path + name, default), meaning
        for block in blocks:
            yield from job_keys(block, f"{path}{name}.")


# A key that is missing in the file stays unset there: its default is the policy's.
_POLICY_DEFAULTS = {
    f"{settings_of(Policy)[each.name].section}.{each.name}": "none" if each.default is None else f"`{each.default}`"
    for each in fields(Policy)
}


def _shown(default: object) -> str:
    if default is PydanticUndefined:
        return "required"
    if isinstance(default, Section):
        return ""
    if default in (None, "", (), {}):
        return "none"
    text = format_seconds(default) if isinstance(default, float) else default
    return f"`{str(text).lower() if isinstance(text, bool) else text}`"


def operation_rows(_: Any) -> Iterator[str]:
    yield from calls.markdown().splitlines()


def event_rows(_: Any) -> Iterator[str]:
    yield from events.markdown().splitlines()


def need_rows(_: Any) -> Iterator[str]:
    yield from world_needs.markdown().splitlines()


PAGES: dict[Path, dict[str, Rows]] = {
    DOCS / "configuration.md": {"policy": policy_rows, "variables": variable_rows},
    DOCS / "doctor.md": {"needs": need_rows},
    DOCS / "job_file.md": {"keys": key_rows, "platforms": platform_rows},
    DOCS / "pool.md": {"pool": pool_rows, "people": person_rows},
    DOCS / "protocol.md": {"operations": operation_rows},
    DOCS / "testing.md": {"events": event_rows},
}


def with_tables(path: Path, kind: Any = Policy) -> str:
    """The page with its tables as the declarations are now."""
    page = path.read_text()
    for name, rows in PAGES[path].items():
        table = "\n".join([f"<!-- {name}: {_BY} -->", *rows(kind), f"<!-- end of {name} -->"])
        (old,) = re.findall(rf"<!-- {name}: .*?<!-- end of {name} -->", page, flags=re.DOTALL)
        page = page.replace(old, table)
    return page


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(with_tables(each))
