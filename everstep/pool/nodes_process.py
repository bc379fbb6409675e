"""The process that manages the pools' nodes, kept alive by a thread of the coordinator. It ends with the coordinator,
kill -9 included."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from everstep.process import Child, own_command

_AGAIN_S, _LONGEST_AGAIN_S = 0.5, 30.0
_STEADY_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolsOfServe:
    file: Path
    folder: Path
    token_file: Path


def start_keeping(pools: PoolsOfServe, url: str, say: Callable[[str], None]) -> None:
    options = {
        "--file": str(pools.file.resolve()),
        "--folder": str(pools.folder.resolve()),
        "--token-file": str(pools.token_file.resolve()),
        "--coordinator": url,
    }
    # In a thread that lasts, because the kernel ends a child with the thread that started it.
    threading.Thread(
        target=_keep, args=(own_command("pool-nodes", options), say), name="pool nodes", daemon=True
    ).start()


def _keep(command: list[str], say: Callable[[str], None]) -> None:
    pause_s = _AGAIN_S
    while True:
        began = time.monotonic()
        try:
            ended = str(Child.start(command).wait())
        except OSError as error:  # a full disk, no process left
            ended = str(error)
        if time.monotonic() - began >= _STEADY_S:
            pause_s = _AGAIN_S
        say(f"the process that manages the pools' nodes ended ({ended}); starting it again in {pause_s:g} s")
        threading.Event().wait(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_AGAIN_S)
