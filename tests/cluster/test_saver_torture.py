"""Hundreds of saves while workers and agents are killed and the disk fills up, goes read-only and vanishes.

After each blow the newest checkpoint is loaded: it must be whole, and no older than the last one that was said to be
durable."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from everstep.process import wait_for_end
from lab.command import until
from lab.length import usual
from lab.saved import load_step
from lab.stage import SCRIPTS
from lab.terminal import Run

NUM_SAVES = usual(60, long=200)
MB = 1.0
DISK_MB = 8


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


class Torture:
    """One run after another over the same disk."""

    def __init__(self, disk: Path, directory: Path, seed: int) -> None:
        self.disk, self.directory, self.chance = disk, directory, random.Random(seed)
        self.checkpoints = disk / "checkpoints"
        self.durable = -1
        self.num_saves = 0
        self._num_seen = 0

    def run(self) -> Run:
        arguments = [SCRIPTS / "save.py", self.checkpoints, "--steps", 100000, "--mb", MB, "--step-s", 0.002]
        every = ["--every", 2, "--memory-every", 1]
        return Run("--max-restarts=1000", *arguments, *every, directory=self.directory)

    def look(self, run: Run) -> list[dict]:
        """The events since the last look; what they say of saves is noted."""
        events = run.tape.read()
        news, self._num_seen = events[self._num_seen :], len(events)
        for event in news:
            if event["event"] == "saved":
                self.num_saves += 1
            if event["event"] == "checkpoint.written":
                self.durable = max(self.durable, event["step"])
        return news

    def let_save(self, run: Run, number: int) -> None:
        """Wait for this many more saves, including those of a worker that has just come."""
        self.look(run)
        wanted = self.num_saves + number
        run.until(lambda: self.look(run) is not None and self.num_saves >= wanted, f"{number} saves")

    def worker_pid(self, run: Run) -> int:
        return [event["pid"] for event in run.tape.read() if event["event"] == "worker.started"][-1]

    def check(self, run: Run) -> None:
        durable = self.durable
        assert load_step(self.checkpoints) >= durable, run.said

    def put_back(self, aside: Path) -> None:
        """The folder that had vanished is there again; what was written meanwhile is newer, and stays."""
        newer: list[Path] = []
        while True:
            try:
                aside.rename(self.checkpoints)
                break
            except OSError:  # a new folder stands in its place, and is not empty
                newer.append(aside.with_name(f"newer-{len(newer)}"))
                self.checkpoints.rename(newer[-1])
        for folder in newer:
            for left in folder.iterdir():
                if not (self.checkpoints / left.name).exists():
                    left.rename(self.checkpoints / left.name)
            shutil.rmtree(folder)

    @contextmanager
    def trouble(self, kind: str) -> Iterator[None]:
        if kind == "full":
            filler = self.disk / "filler"
            try:
                with filler.open("wb", buffering=0) as file:
                    while True:
                        file.write(b"x" * (1 << 16))
            except OSError:
                pass
            yield
            filler.unlink()
        elif kind == "read-only":
            is_busy = subprocess.run(["mount", "-o", "remount,ro", self.disk], capture_output=True).returncode
            yield
            if not is_busy:
                subprocess.run(["mount", "-o", "remount,rw", self.disk], check=True)
        elif kind == "vanished":
            aside = self.checkpoints.with_name("aside")
            self.checkpoints.rename(aside)
            yield
            self.put_back(aside)
        else:
            yield


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_no_blow_leaves_less_than_was_said_to_be_durable(disk: Path, tmp_path: Path) -> None:
    torture = Torture(disk, tmp_path, seed=1)
    blows = [
        "worker",
        "full",
        "worker",
        "read-only",
        "agent",
        "vanished",
        "worker",
        "full and worker",
        "saver",
        "agent",
    ]
    dealt: list[str] = []

    def is_enough() -> bool:
        return torture.num_saves >= NUM_SAVES and set(dealt) == set(blows)

    while not is_enough():
        with torture.run() as run:
            torture.let_save(run, 4)
            while not is_enough():
                blow = blows.pop(0)
                blows.append(blow)
                dealt.append(blow)
                torture.let_save(run, 2 + torture.chance.randrange(8))
                time.sleep(torture.chance.random() * 0.02)  # anywhere in a copy or a write
                with torture.trouble(blow.partition(" ")[0]):
                    torture.let_save(run, 3)
                    if "worker" in blow:
                        os.kill(torture.worker_pid(run), signal.SIGKILL)
                        torture.look(run)
                        torture.check(run)
                if blow in ("saver", "agent"):
                    break
                torture.let_save(run, 2)
                torture.look(run)
                torture.check(run)
            savers = [event["saver"] for event in run.tape.read() if event["event"] == "saver.opened"]
            if blow == "saver":
                os.kill(savers[-1], signal.SIGKILL)
                torture.let_save(run, 3)
            os.kill(run.process.pid, signal.SIGKILL)
            assert run.process.wait(60.0) is not None
            assert wait_for_end(savers[-1], 60.0)
            torture.look(run)
            torture.check(run)
    until(lambda: load_step(torture.checkpoints) >= torture.durable, lambda: "the end")
    assert torture.num_saves >= NUM_SAVES
    assert torture.durable > 50
