"""`everstep run` on this machine: its output and its events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everstep.testing.tape import Tape
from lab import nest
from lab.command import CALM_OPTIONS, EVERSTEP, Command

SHARED, OWN, NONE = "shared", "own", "none"  # the nursery of its workers


class Run(Command):
    def __init__(self, *arguments: object, directory: Path, nursery: str = SHARED, **env: Any) -> None:
        """OWN and NONE are for stories about how nurseries or workers end."""
        given = {
            SHARED: nest.shared(),
            OWN: {"XDG_RUNTIME_DIR": str(directory)},
            NONE: {"XDG_RUNTIME_DIR": str(directory), "EVERSTEP_NURSERY": "off"},
        }[nursery]
        options = ["--heartbeat-s=0.2", *CALM_OPTIONS, *(nest.AGENT_OPTIONS if nursery == SHARED else ())]
        self.tape = Tape(directory / "events.jsonl")
        events = {"EVERSTEP_EVENTS": str(directory / "events.jsonl")}
        super().__init__(*EVERSTEP, "run", *options, *arguments, folder=directory, **events, **given, **env)
