"""A coordinator that is killed and started again, often: each one is a fork of a process that has imported everything,
so a start takes some hundredth of a second."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from everstep.env import read_token

NURSERY = """
import os, signal, sys
from everstep.coordinator.edge.server import serve
store, token_file, log = sys.argv[1:]
pid = 0
for line in sys.stdin:
    if pid:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        pid = 0
    if line.startswith("start"):
        ready, ready_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            serve("127.0.0.1", int(line.split()[1]), store, token_file, ready_fd=ready_fd)
            os._exit(0)
        os.close(ready_fd)
        with os.fdopen(ready) as lines:
            print(lines.readline().strip(), flush=True)
    else:
        print("dead", flush=True)
"""


class FrailCoordinator:
    def __init__(self, folder: Path, store: str, port: int) -> None:
        """`port`: held by the caller, so that it stays free while the coordinator is dead."""
        self.token_file, self.log_file, self._port = folder / "token", folder / "log", port
        command = [sys.executable, "-c", NURSERY, store, str(self.token_file), str(self.log_file)]
        self._process = subprocess.Popen(
            command, env={"PYTHONPATH": ":".join(sys.path)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.start()

    @property
    def token(self) -> str:
        return read_token(self.token_file)

    def start(self) -> None:
        self.url = self._tell(f"start {self._port}")
        assert self.url, self.log_file.read_text()

    def kill(self) -> None:
        assert self._tell("kill") == "dead"

    def close(self) -> None:
        self.kill()
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(60)

    def _tell(self, line: str) -> str:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()
