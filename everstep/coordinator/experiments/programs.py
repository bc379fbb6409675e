"""Reads the post of a search program as an event of its search."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from everstep import wire
from everstep.errors import Refused
from everstep.search.config import CUSTOM, SearchConfig
from everstep.search.events import Programmed


async def read_operations(
    config: SearchConfig, message: wire.SearchOperations, find: Callable[[str], Awaitable[Mapping[str, Any]]]
) -> Programmed:
    """`find` returns where a checkpoint is. The event keeps that, so that the fold needs no store."""
    if config.name != CUSTOM:
        raise Refused(
            f"searcher {config.name} takes no operations, but {len(message.operations)} came after event "
            f"{message.after_event}: only searcher.name: custom takes operations",
            code="search-not-custom",
        )
    operations = [dict(each) for each in message.operations]
    for each in operations:
        if isinstance(uuid := each.get("checkpoint"), str) and uuid:
            each["checkpoint"] = await find(uuid)
    return Programmed(after_event=message.after_event, operations=operations)
