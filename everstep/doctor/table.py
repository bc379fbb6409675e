"""Findings for people: a table per node; and for machines: JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from everstep.doctor.finding import ERROR, OK, WARNING, Finding

_STYLES = {OK: "green", WARNING: "yellow", ERROR: "bold red"}


def render(title: str, findings: Sequence[Finding]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=False)
    for style in ("bold", None, None):
        table.add_column(style=style, vertical="top")
    for finding in findings:
        text = Text(finding.text)
        if finding.hint:
            text.append(f"\n→ {finding.hint}", style="dim")
        table.add_row(finding.check, Text(finding.level, style=_STYLES[finding.level]), text)
    return table


def to_json(nodes: Mapping[str, Sequence[Finding]]) -> str:
    return json.dumps({"nodes": {name: [asdict(each) for each in found] for name, found in nodes.items()}}, indent=2)
