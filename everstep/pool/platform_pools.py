"""The pools that commands have asked the local service for, on any platform: one process for each pool in use.

Each pool has a folder with the request and what its nodes leave behind. A file `used` in it means that nodes may be
left: the next service releases them, no matter how this one ended. Importing what reads pool files takes half of a
service's start, so it waits for the first request."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from everstep import env
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError
from everstep.launcher.local_coordinator import LocalCoordinator
from everstep.pool.temporary_nodes import pools_at_work
from everstep.process import Child, own_command
from everstep.storage import private_file

log = logging.getLogger("everstep")

_AGAIN_S = 5.0
_RELEASE_S = 85.0


class PlatformPools:
    """Use it from one long-lived thread: the kernel ends a child with the thread that started it."""

    def __init__(
        self, folder: Path, token_file: Path, coordinator: LocalCoordinator, say: Callable[[str], None]
    ) -> None:
        self._folder, self._token_file, self._coordinator, self._say = folder, token_file, coordinator, say
        self._keepers: dict[str, Child] = {}
        self._not_before: dict[str, float] = {}

    def __enter__(self) -> PlatformPools:
        return self

    def __exit__(self, *error: object) -> None:
        """Release all nodes. Active experiments get new ones from the next service."""
        for each in self._keepers.values():
            each.signal(signal.SIGTERM, is_for_group=False)
        deadline = time.monotonic() + _RELEASE_S
        for name, each in list(self._keepers.items()):
            if each.wait(max(0.0, deadline - time.monotonic())) is None:
                each.kill()
            self._bury(name)

    def turn(self) -> bool:
        """Start and end keepers as needed. Returns whether any pool has nodes or needs some."""
        for name in list(self._keepers):
            self._bury(name)
        folders = {each.parent.name: each.parent for each in self._folder.glob("*/request.json")}
        needed = self._needed() if folders else set()
        for name, folder in folders.items():
            is_due = time.monotonic() >= self._not_before.get(name, 0.0)
            if name not in self._keepers and is_due and (name in needed or (folder / "used").exists()):
                self._start(name, folder)
        return bool(self._keepers) or any((each / "used").exists() for each in folders.values())

    def _needed(self) -> set[str]:
        try:
            with closing(Coordinator(self._coordinator.url, env.read_token(self._token_file), "")) as coordinator:
                return pools_at_work(coordinator)
        except EverstepError:
            return set()

    def _start(self, name: str, folder: Path) -> None:
        from everstep.pool.experiment_pool import PoolRequest

        self._not_before[name] = time.monotonic() + _AGAIN_S
        try:
            request = PoolRequest.read(folder)
            if request.address:
                self._coordinator.listen_on("::" if ":" in request.address else "0.0.0.0")
            private_file.write_text(folder / "used", "")
            private_file.write_text(folder / "pool.yaml", request.file(int(self._coordinator.url.rsplit(":", 1)[1])))
            with private_file.append_log(folder / "nodes.log") as output:
                variables = {**env.everything(), **request.env}
                self._keepers[name] = Child.start([*self._command(folder)], env=variables, output=output)
        except (OSError, ValueError, TypeError) as error:
            self._say(f"cannot create nodes for pool {name}: {error}")

    def _command(self, folder: Path) -> Iterator[str]:
        options: Mapping[str, str] = {
            "--file": str(folder / "pool.yaml"),
            "--folder": str(folder / "nodes"),
            "--token-file": str(self._token_file),
            "--coordinator": self._coordinator.url,
        }
        yield from (*own_command("pool-nodes", options), "--until-unused")

    def _bury(self, name: str) -> None:
        ended = self._keepers[name].wait(0.0)
        if ended is None:
            return
        del self._keepers[name]
        if ended.is_good:
            (self._folder / name / "used").unlink(missing_ok=True)
        else:
            self._say(f"the process that manages the nodes of pool {name} ended ({ended})")
