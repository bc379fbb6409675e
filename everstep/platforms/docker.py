"""The docker engine through its own commands: Compose of either version, and the state of containers.

The commands read DOCKER_HOST and their other variables themselves."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from everstep import env
from everstep.errors import PermanentError, UsageError
from everstep.platforms.base import LogLine
from everstep.process import Answer, Child, ask

_ANSWER_S = 30.0
_TURN_S = 1.0  # between two looks at which containers there are
_LAST_S = 5.0  # for their last lines
_READ_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    id: str
    name: str
    service: str
    state: str  # created, running, paused, restarting, removing, exited, dead
    exit_code: int
    started_at: str
    ended_at: float = 0.0  # unix time
    health: str = ""
    is_out_of_memory: bool = False
    ports: dict[str, int] = field(default_factory=dict)  # of the machine's loopback, by the container's: "7070/tcp"

    @property
    def is_over(self) -> bool:
        return self.state in ("exited", "dead", "removing")

    @property
    def reason(self) -> str:
        if self.is_over:
            return f"exit code {self.exit_code}" + (", out of memory" if self.is_out_of_memory else "")
        return self.health


def problem() -> str | None:
    """Why no engine is usable from here, with a remedy."""
    if shutil.which("docker") is None:
        return "docker not found; install Docker and its Compose plugin"
    host = env.value("DOCKER_HOST") or ""
    if host.startswith("ssh://") or (host.startswith("tcp://") and "//127." not in host and "//localhost" not in host):
        return f"DOCKER_HOST={host} is another machine, which cannot see this machine's files; use the local engine"
    try:
        answer = ask(["docker", "version", "--format", "{{.Server.Version}}"], timeout_s=_ANSWER_S)
        if not answer.exit.is_good:
            return f"{answer.errors.strip()}; start the engine, or set DOCKER_HOST"
        compose()
    except (TimeoutError, UsageError) as error:
        return str(error)
    return None


def compose() -> list[str]:
    """`docker compose` or `docker-compose`."""
    if shutil.which("docker") and ask(["docker", "compose", "version"], timeout_s=_ANSWER_S).exit.is_good:
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    hint = "install the plugin docker-compose-plugin, or docker-compose"
    raise UsageError("Docker Compose not found", hint=hint, code="docker-compose-not-found")


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """One Compose file, running or not."""

    name: str
    file: Path

    def run(self, *words: str, timeout_s: float) -> None:
        answer = self.try_to(*words, timeout_s=timeout_s)
        if not answer.exit.is_good:
            said = (answer.errors or answer.text).strip()[-2000:]
            raise PermanentError(
                f"docker compose {words[0]} failed ({answer.exit}): {said}", code="docker-compose-failed"
            )

    def try_to(self, *words: str, timeout_s: float) -> Answer:
        try:
            return ask([*compose(), "-p", self.name, "-f", str(self.file), *words], timeout_s=timeout_s)
        except TimeoutError as error:
            raise PermanentError(str(error), hint="check the docker engine", code="docker-compose-timeout") from None

    def containers(self) -> list[Container]:
        """Those of its services, running or not."""
        label = f"label=com.docker.compose.project={self.name}"
        ids = _docker("ps", "--all", "--quiet", "--no-trunc", "--filter", label).split()
        return sorted(map(_container, _inspect(ids)), key=lambda each: each.name)


def _inspect(ids: Sequence[str]) -> list[Any]:
    """Those that still exist."""
    if not ids:
        return []
    answer = _ask("inspect", "--type", "container", *ids)
    found: list[Any] = json.loads(answer.text or "[]")
    return found


def _docker(*words: str) -> str:
    answer = _ask(*words)
    if not answer.exit.is_good:
        raise PermanentError(f"docker {words[0]}: {answer.errors.strip()}", code="docker-command-failed")
    return answer.text


def _ask(*words: str) -> Answer:
    try:
        return ask(["docker", *words], timeout_s=_ANSWER_S)
    except FileNotFoundError:
        raise UsageError(
            "docker not found", hint="install Docker and its Compose plugin", code="docker-not-found"
        ) from None
    except TimeoutError as error:
        raise PermanentError(str(error), hint="check the docker engine", code="docker-timeout") from None


def _container(told: Any) -> Container:
    state = told["State"]
    published = told["NetworkSettings"].get("Ports") or {}
    return Container(
        id=told["Id"],
        name=told["Name"].lstrip("/"),
        service=told["Config"]["Labels"].get("com.docker.compose.service", ""),
        state=state["Status"],
        exit_code=state["ExitCode"],
        started_at=state["StartedAt"],
        ended_at=_unix_time(state.get("FinishedAt") or ""),
        health=(state.get("Health") or {}).get("Status", ""),
        is_out_of_memory=bool(state.get("OOMKilled")),
        ports={inner: int(outer[0]["HostPort"]) for inner, outer in published.items() if outer},
    )


def _unix_time(stamp: str) -> float:
    """Whole seconds of 2026-11-15T10:15:00.123456789Z; 0 for what never was, which the engine says by the year 1."""
    if not stamp or stamp.startswith("0001-"):
        return 0.0
    return datetime.fromisoformat(stamp[:19]).replace(tzinfo=timezone.utc).timestamp()


# --- logs -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    containers: Sequence[Container]
    is_over: bool  # nothing more will come


def logs(look: Callable[[], Look], *, follow: bool) -> Iterator[LogLine]:
    """All lines from the beginning; with `follow` as they are printed, also of containers that come or start again
    later."""
    followed: dict[str, str] = {}  # by a container's id: the start that was read from
    with selectors.DefaultSelector() as selector:
        try:
            is_last = False
            while not is_last:
                seen = look()
                is_last = seen.is_over or not follow
                for container in seen.containers:
                    if container.state != "created" and followed.get(container.id) != container.started_at:
                        since = ["--since", container.started_at] if container.id in followed else []
                        followed[container.id] = container.started_at
                        tail = _Tail(container, [*since, *(["--follow"] if follow else [])])
                        selector.register(tail.descriptor, selectors.EVENT_READ, tail)
                yield from _read(selector, for_s=_LAST_S if is_last else _TURN_S)
        finally:
            for key in list(selector.get_map().values()):
                key.data.close()


def _read(selector: selectors.BaseSelector, *, for_s: float) -> Iterator[LogLine]:
    """Lines that arrive within this time. A container that outlives the job has nothing to add."""
    deadline = time.monotonic() + for_s
    while (left_s := deadline - time.monotonic()) > 0 and (selector.get_map() or for_s == _TURN_S):
        for key, _ in selector.select(left_s):
            tail: _Tail = key.data
            lines = tail.read()
            yield from (LogLine(node=tail.service, text=line) for line in lines or ())
            if lines is None:
                selector.unregister(tail.descriptor)
                tail.close()


class _Tail:
    """`docker logs` of one container, as a process."""

    def __init__(self, container: Container, options: Sequence[str]) -> None:
        self.service = container.service
        self._rest = b""
        self.descriptor, output = os.pipe()
        try:
            self._child = Child.start(["docker", "logs", *options, container.id], output=output)
        finally:
            os.close(output)

    def read(self) -> list[str] | None:
        """Whole lines; None at the end."""
        data = os.read(self.descriptor, _READ_BYTES)
        if not data:
            rest, self._rest = self._rest, b""
            return [rest.decode(errors="replace")] if rest else None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace").rstrip("\r") for line in lines]

    def close(self) -> None:
        self._child.kill()
        os.close(self.descriptor)
