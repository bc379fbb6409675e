"""A job that was submitted on the command line, as a person does it, and its course."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lab.command import EVERSTEP, ROOT, Command, Shell, everstep, run

SCRIPT = ROOT / "tests" / "platforms" / "scripts" / "train.py"


class Submitted(Shell):
    """`everstep run -f job.yaml` in a folder; then the other commands."""

    def __init__(self, folder: Path, job: Mapping[str, Any], env: Mapping[str, str]) -> None:
        super().__init__(folder, **env)
        (folder / "train.py").write_bytes(SCRIPT.read_bytes())
        (folder / "job.yaml").write_text(yaml.safe_dump(dict(job)))
        (folder / "info.yaml").write_text(self.type("run", "-f", "job.yaml"))
        self.info = yaml.safe_load((folder / "info.yaml").read_text())
        self.id: str = self.info["everstep"]["id"]
        self._follower = Command(*EVERSTEP, "logs", self.id, "--follow", folder=folder, **self.env)

    @property
    def said(self) -> str:
        return self._follower.said

    def wait_said(self, pattern: str, *, after: int = 0) -> re.Match[str]:
        """`after`: skip this many characters of the output."""
        return self._follower.wait_said(pattern, after=after)

    def wait_size(self, num_workers: int, *, after: int = 0) -> int:
        """Wait for a generation later than `after` with this many workers; return its number. Nodes' lines come in any
        order, and each names the same generation."""

        def find() -> list[int]:
            told = re.findall(rf"generation (\d+) trains with {num_workers} workers? from", self.said)
            return [int(number) for number in told if int(number) > after]

        self._follower.until(find, f"{num_workers} workers after generation {after}")
        return find()[0]

    def finish(self) -> str:
        """Wait until it succeeds; returns its output."""
        return self.type("watch", self.id)

    def close(self) -> None:
        try:
            everstep("cancel", self.id, folder=self.folder, **self.env)
        finally:
            self._follower.end()


@cache
def digest_after(num_steps: int) -> str:
    """Of the weights after the same training in one process, undisturbed."""
    done = run(sys.executable, SCRIPT, "--steps", num_steps, "--pace", 0, folder=ROOT)
    assert done.returncode == 0, done.stderr
    return re.findall(r"digest (\w+)", done.stdout)[0]
