"""What people have used of a pool, as a table, JSON or CSV."""

from __future__ import annotations

import csv
import sys
from dataclasses import asdict

from rich.console import Console

from everstep import wire
from everstep.cli.tables import print_json, table

_COLUMNS = ("day", "person", "slot_seconds")
_NO_NAME = "(no name)"


def print_use(found: wire.PoolUse, *, is_json: bool, is_csv: bool) -> None:
    if is_json:
        print_json(asdict(found))
    elif is_csv:
        rows = [(each.day, each.person, each.slot_seconds) for each in found.use]
        csv.writer(sys.stdout, lineterminator="\n").writerows([_COLUMNS, *rows])
    elif found.use:
        cells = [(each.day, each.person or _NO_NAME, f"{each.slot_seconds / 3600:.2f}") for each in found.use]
        Console().print(table(f"pool {found.pool}", ("day", "person", "slot-hours"), cells))
    else:
        print(f"pool {found.pool}: no slot was used on these days")
