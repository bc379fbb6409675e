"""A job that was submitted by the command line, as a person does it, and what becomes of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

DEADLINE_S = 240.0  # of one event or one command: none of them takes a tenth of it
SCRIPT = Path(__file__).parents[1] / "platforms" / "scripts" / "train.py"


class Submitted:
    """`everstep run -f job.yaml` in a folder; then the other commands."""

    def __init__(self, folder: Path, job: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self.folder, self._env = folder, {**os.environ, **env, "EVERSTEP_HOME": str(folder / "home")}
        (folder / "train.py").write_bytes(SCRIPT.read_bytes())
        (folder / "job.yaml").write_text(yaml.safe_dump(dict(job)))
        (folder / "info.yaml").write_text(self.type("run", "-f", "job.yaml"))
        self.info = yaml.safe_load((folder / "info.yaml").read_text())
        self.id: str = self.info["everstep"]["id"]
        self._lines: list[str] = []
        self._follower = subprocess.Popen(
            _everstep("logs", self.id, "--follow"),
            cwd=folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def type(self, *words: str, is_good: bool = True) -> str:
        """What the command prints to stdout."""
        done = type_everstep(*words, cwd=self.folder, env=self._env)
        assert (done.returncode == 0) == is_good, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @property
    def said(self) -> str:
        return "\n".join(self._lines)

    def wait_said(self, pattern: str, *, after: int = 0) -> re.Match[str]:
        """`after`: so many characters of what was said."""

        def find() -> re.Match[str] | None:
            return re.search(pattern, self.said[after:])

        until(find, lambda: f"{self.id} did not say {pattern!r}; it said\n{self.said}")
        found = find()
        assert found is not None
        return found

    def wait_size(self, num_workers: int, *, after: int = 0) -> int:
        """Until a generation later than `after` trains with so many: its number. Nodes' lines come in any order, and
        each tells of the same generation."""

        def find() -> list[int]:
            told = re.findall(rf"generation (\d+) trains with {num_workers} workers", self.said)
            return [int(number) for number in told if int(number) > after]

        until(find, lambda: f"{self.id} has not {num_workers} workers after generation {after}; it said\n{self.said}")
        return find()[0]

    def finish(self) -> str:
        """To its good end: all that it said."""
        return self.type("watch", self.id)

    def close(self) -> None:
        try:
            type_everstep("cancel", self.id, cwd=self.folder, env=self._env)
        finally:
            self._follower.kill()
            self._follower.wait()
            self._reader.join()

    def _collect(self) -> None:
        assert self._follower.stdout is not None
        for line in self._follower.stdout:
            self._lines.append(line.rstrip("\n"))


def _everstep(*words: str) -> list[str]:
    return [sys.executable, "-m", "everstep", *words]


def type_everstep(*words: str, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **env}
    return subprocess.run(
        _everstep(*words), cwd=cwd, env=environment, capture_output=True, text=True, timeout=DEADLINE_S
    )


def until(is_true: Callable[[], Any], story: Callable[[], str], *, deadline_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + deadline_s
    while not is_true():
        assert time.monotonic() < deadline, story()
        time.sleep(0.05)


def processes_of(job_id: str) -> list[str]:
    """Of this machine, also in containers: those that were told of the job."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if job_id.encode() in (folder / "environ").read_bytes():
                found.append(f"{folder.name}: {(folder / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()}")
        except OSError:  # it has just ended, or is another user's
            continue
    return found


@cache
def digest_after(num_steps: int) -> str:
    """Of the weights after the same training in one process, undisturbed."""
    command = [sys.executable, SCRIPT, "--steps", str(num_steps), "--pace", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return re.findall(r"digest (\w+)", done.stdout)[0]
