"""A coordinator with a pool file, whose nodes it makes itself; and how they are seen and ended from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from everstep import wire
from everstep.process import process_state, wait_for_end
from lab.command import until
from lab.pool_stage import PoolStage


class PoolFileStage(PoolStage):
    def __init__(self, folder: Path, pool: Mapping[str, Any], address: str = "", **env: str) -> None:
        """`address`: of this machine, as nodes elsewhere reach it."""
        super().__init__(folder, **env)
        self.file, self.pool, self._address = folder / "pools.yaml", dict(pool), address
        self.people: Mapping[str, Any] = {}
        self.serve_words = ["--pools", str(self.file), *(["--host", "0.0.0.0"] if address else [])]

    def start_coordinator(self) -> None:
        where = {"coordinator": f"http://{self._address}:{self._port}"} if self._address else {}
        self.file.write_text(yaml.safe_dump({"pools": {"default": self.pool | where}, "people": dict(self.people)}))
        super().start_coordinator()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        for pid in self.pids().values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            wait_for_end(pid, 10.0)

    @property
    def nodes_folder(self) -> Path:
        return self.folder / "pools.yaml.nodes" / "default"

    def pids(self) -> dict[str, int]:
        """Of the local nodes that are alive."""
        found = {path.parent: int(path.read_text().split()[0]) for path in self.nodes_folder.glob("*/pid")}
        names = {json.loads((folder / "made.json").read_text())["name"]: pid for folder, pid in found.items()}
        return {name: pid for name, pid in names.items() if process_state(pid) != "ended"}

    def num_made(self) -> int:
        return len(list(self.nodes_folder.glob("*/made.json")))

    def present(self) -> list[str]:
        return [each.agent for each in self.trials.pool().agents if each.is_present]

    def wait_present(self, *names: str) -> None:
        until(lambda: self.present() == list(names), lambda: f"{self.present()} {self.trials.pool()}")

    def told(self) -> wire.PoolNodes | None:
        return self.trials.pool().nodes

    def reason(self) -> str:
        told = self.told()
        return told.reason if told is not None else ""

    def kill_node(self, name: str) -> None:
        pid = self.pids()[name]
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid, 10.0)
