"""Which tests run in sequence, and which in parallel: `pytest -n LANES` gives each lane a process.

A file stays in one lane, so that what its tests share is made once. So does a system that exists only once on a
machine. What takes longest begins first."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from xdist.scheduler import LoadScopeScheduling

ONE_OF_A_KIND = ("tests/platforms/kubernetes", "tests/platforms/slurm", "tests/platforms/docker")
_LONGEST_FIRST = (*ONE_OF_A_KIND, "tests/cluster", "tests/platforms", "tests/examples", "tests/contracts")


class Lanes(LoadScopeScheduling):
    def __init__(self, config: pytest.Config, log: object = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # the order is that of `in_order`

    def _split_scope(self, nodeid: str) -> str:
        return lane_mates(nodeid)


def lane_mates(nodeid: str) -> str:
    """The same name for all tests that must not run in parallel."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in ONE_OF_A_KIND if file.startswith(f"{folder}/")), file)


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    return sorted(items, key=lambda item: _turn(item.nodeid))


def _turn(nodeid: str) -> int:
    matching = (turn for turn, folder in enumerate(_LONGEST_FIRST) if nodeid.startswith(f"{folder}/"))
    return next(matching, len(_LONGEST_FIRST))


def folder_of(nodeid: str) -> str:
    """The line of a test in the table of minutes: tests/unit, tests/platforms/slurm, …"""
    parts = PurePosixPath(nodeid.partition("::")[0]).parts
    depth = 3 if len(parts) > 3 and parts[1] == "platforms" else 2
    return "/".join(parts[:depth])
