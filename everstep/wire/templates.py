"""Messages about templates: pieces of configuration that the coordinator keeps by name, for several experiments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from everstep.wire.encoding import to_json
from everstep.wire.jobs import MAX_CONFIG_BYTES
from everstep.wire.metrics import MAX_DEPTH, value_problems

MOST_TEMPLATES = 1000  # in one answer


@dataclass(frozen=True, kw_only=True, slots=True)
class TemplateText:
    """A piece of configuration. The keys of an experiment's own file go before those of its template."""

    config: dict[str, Any]
    written: str  # as its author wrote it
    is_new: bool = False  # refuse to replace another person's, or one's own

    def problems(self) -> Iterator[str]:
        yield from value_problems(self.config, MAX_DEPTH + 4)
        if (num_bytes := len(to_json(self.config)) + len(to_json(self.written))) > MAX_CONFIG_BYTES:
            yield f"the template has {num_bytes} bytes, more than {MAX_CONFIG_BYTES}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TemplateView:
    name: str
    config: dict[str, Any]
    written: str
    owner: str  # the person who created it; "": a token without a name
    created_at: float
    changed_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TemplateList:
    templates: list[TemplateView]  # by name
    num_found: int
