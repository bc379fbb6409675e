"""`everstep run` on this machine, what it shows and what it tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everstep.testing.tape import Tape
from lab import nest
from lab.command import CALM_OPTIONS, EVERSTEP, Command

SHARED, OWN, NONE = "shared", "own", "none"  # the nursery that its workers come from


class Run(Command):
    def __init__(self, *arguments: object, directory: Path, nursery: str = SHARED, **env: Any) -> None:
        """A nursery of its own, or none, is for stories about the ends of either."""
        given = {
            SHARED: nest.shared(),
            OWN: {"XDG_RUNTIME_DIR": str(directory)},
            NONE: {"XDG_RUNTIME_DIR": str(directory), "EVERSTEP_NURSERY": "off"},
        }[nursery]
        options = ["--heartbeat-s=0.2", *CALM_OPTIONS, *(nest.AGENT_OPTIONS if nursery == SHARED else ())]
        self.tape = Tape(directory / "events.jsonl")
        events = {"EVERSTEP_EVENTS": str(directory / "events.jsonl")}
        super().__init__(*EVERSTEP, "run", *options, *arguments, folder=directory, **events, **given, **env)
