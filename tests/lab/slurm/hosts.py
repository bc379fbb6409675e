"""The lab's Slurm, as tests use it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = Path(__file__).parent / "lab"


@dataclass(frozen=True, kw_only=True)
class Lab:
    folder: Path
    num_hosts: int  # the first one controls

    def up(self) -> None:
        self._call("up", str(self.num_hosts))

    def down(self) -> None:
        self._call("down")

    def crash(self, host: str) -> None:
        """At once, with all that runs on it; `up` starts it again."""
        self._call("crash", host.removeprefix("h"))

    def env(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def ask(self, *command: str) -> str:
        """What a command says on the login node."""
        done = subprocess.run(
            command, env={**os.environ, **self.env()}, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def jobs(self, name: str = "", *, state: str = "") -> list[str]:
        wanted = [f"--name={name},{name}-coordinator"] if name else []
        return self.ask(
            "squeue", "-h", "-r", "-o", "%i %T %N", *wanted, *([f"--states={state}"] if state else [])
        ).splitlines()

    def _call(self, *words: str) -> None:
        done = subprocess.run(
            [_SCRIPT, *words],
            env={**os.environ, "LAB": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stdout
