"""Searches that ask something outside: a model for samples, or a program of the user's."""

from __future__ import annotations

from everstep import wire
from everstep.errors import Refused, UsageError
from everstep.search.config import SearchConfig
from everstep.search.events import Ask, Event, Suggested


async def suggest(spec: wire.ExperimentSpec, config: SearchConfig, ask: Ask) -> Suggested:
    """The answer to Ask. An error ends the experiment with its text."""
    raise UsageError(
        f"searcher {config.name} cannot choose trials {ask.trials[0]} to {ask.trials[-1]} of {spec.name!r} here",
        hint="use searcher.name: random",
        code="search-model-missing",
    )


def read_operations(config: SearchConfig, message: wire.SearchOperations) -> Event:
    """The event that a program's operations are."""
    raise Refused(
        f"searcher {config.name} decides by itself; {len(message.operations)} operations came after event "
        f"{message.after_event}: only searcher.name: custom takes operations",
        code="search-not-custom",
    )
