"""A pool's nodes as processes on this machine. They outlive the process that starts them, and it finds them again.

A node writes its process number and its start time into its folder, and is found by them. Until then, it holds the
folder's lock, which it inherits from us: at no moment does it run unnoticed."""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from everstep import env
from everstep.errors import PermanentError
from everstep.launcher.logs import tail
from everstep.launcher.machine import gpu_names
from everstep.platforms.fleet import Fleet, FleetNode
from everstep.platforms.local_fleet import share_of
from everstep.pool.assignment_folders import ASSIGNMENTS
from everstep.pool.join_command import JoinPlace, everstep_of, join_words
from everstep.pool.left_processes import are_processes_left
from everstep.pool.node_folders import MadeNode, NodeFolders
from everstep.pool.pool_file import PoolSection
from everstep.process import ENDED, kill_group, process_state, reap_detached, start_detached, started_at
from everstep.storage import private_file
from everstep.waiting import wait_until

_LATE_S = 10.0  # after its grace, a node that has not left is killed
_STARTED_S = 10.0
_LEFT_S = 900.0  # processes that a node has left stop by themselves before
AGENT = "agent"  # a folder
# Number and start time of the shell stay the same when it becomes the agent. Later, processes that outlive the agent
# would hold the lock.
_SCRIPT = """\
read -ra stat < /proc/$$/stat && echo "$$ ${{stat[21]}}" > "$1/pid.new" && mv "$1/pid.new" "$1/pid" || exit 1
eval "exec $2>&-"; shift 2
{setup}exec "$@"
"""
_NOT_FOR_NODES = (env.TOKEN, env.TOKEN_FILE, env.STORE, env.COORDINATOR, env.JOB, env.WORKER, env.EXPERIMENT, env.TRIAL)


class LocalNodes(Fleet):
    lives_on = makes_nodes = True

    def __init__(self, section: PoolSection, place: JoinPlace, folder: Path) -> None:
        self._section, self._place = section, place
        self._folders = NodeFolders(folder)
        self._started: dict[int, int] = {}  # pids of our own children, by number
        self._quiet: set[int] = set()  # nodes that have ended and of which no process was seen

    def nodes(self) -> Sequence[FleetNode]:
        for each in list(self._folders.live()):
            if not self._is_alive(each.number):
                self._bury(each)
            elif self._is_late(each) and (pid := self._pid(each.number)):
                kill_group(pid)
        for number in list(self._folders.ended(time.time() - _LEFT_S)):
            self._look_for_processes(number)
        return self._folders.nodes(time.time())

    def _look_for_processes(self, number: int) -> None:
        """Twice: one that is just being forked does not work in its folder yet."""
        _, since = self._found(number)
        is_none_left = not are_processes_left(self._folders.of(number) / AGENT / ASSIGNMENTS, int(since))
        if is_none_left and number in self._quiet:
            self._folders.note_dead(number)
        (self._quiet.add if is_none_left else self._quiet.discard)(number)

    def add(self, number: int) -> None:
        section, now, number = self._section, time.time(), self._folders.free_number(number)
        leaves_at = now + section.time_limit - section.grace if section.time_limit is not None else 0.0
        made = MadeNode(
            number=number,
            name=f"{self._place.pool}-{number}",
            made_at=now,
            leaves_at=leaves_at,
            place=self._free_place(),
        )
        folder = self._folders.make(made)
        with private_file.append(folder / "node.lock") as lock, private_file.append(folder / "node.log") as output:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._started[number] = start_detached(
                    node_command(section, self._place, made, folder, lock.fileno()),
                    env=self._environment(made.place),
                    output=output,
                    descriptors=[lock.fileno()],
                    cwd=folder,
                )
            except OSError as error:
                self._folders.note_end(number, f"it could not be started: {error}")
                raise PermanentError(f"{made.name} cannot be started: {error}", code="node-not-started") from None

    def remove(self, name: str) -> None:
        each = next(node for node in self._folders.live() if node.name == name)
        if self._folders.asked_at(each.number):
            return
        wait_until(
            lambda: self._pid(each.number) or not self._is_alive(each.number), _STARTED_S, f"the start of {name}"
        )
        self._folders.note_asked(each.number)  # first: a second signal would kill its trials
        if pid := self._pid(each.number):
            os.kill(pid, signal.SIGTERM)

    def _environment(self, place: int) -> dict[str, str]:
        ours = {name: value for name, value in env.everything().items() if name not in _NOT_FOR_NODES}
        per_node = self._section.slots_per_node
        gpus = share_of(gpu_names(), per_node, place) if per_node != "auto" and gpu_names() else {}
        return {**ours, **self._section.env, **gpus}

    def _free_place(self) -> int:
        taken = {each.place for each in self._folders.live()}
        return next(place for place in itertools.count() if place not in taken)

    def _is_alive(self, number: int) -> bool:
        with private_file.append(self._folders.of(number) / "node.lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return bool(self._pid(number))  # only now: it is written before the lock is released

    def _pid(self, number: int) -> int:
        """The node's process number; 0: it has ended, or has not begun."""
        pid, began_at = self._found(number)
        is_it = started_at(pid) == began_at and process_state(pid) != ENDED
        return pid if is_it else 0

    def _found(self, number: int) -> tuple[int, str]:
        """The agent's process number and start, as it wrote them; 0: it has not begun."""
        try:
            pid, began_at = (self._folders.of(number) / "pid").read_text().split()
        except FileNotFoundError:
            return 0, "0"
        return int(pid), began_at

    def _is_late(self, each: MadeNode) -> bool:
        asked_at = self._folders.asked_at(each.number)
        leaves_at = min([at for at in (asked_at, each.leaves_at) if at], default=float("inf"))
        return time.time() > leaves_at + self._section.grace + _LATE_S

    def _bury(self, each: MadeNode) -> None:
        if pid := self._started.pop(each.number, 0):
            reap_detached(pid)
        said = tail(self._folders.of(each.number) / "node.log")
        self._folders.note_end(each.number, said[-1].removeprefix("everstep: ") if said else "it printed nothing")


def node_command(section: PoolSection, place: JoinPlace, made: MadeNode, folder: Path, lock: int) -> list[str]:
    """Pure. `lock`: the descriptor that it inherits. Shown by `everstep pool check --show`."""
    options = {"--name": made.name, "--folder": str(folder / AGENT)}
    if made.leaves_at:
        options["--until"] = f"{made.leaves_at:.0f}"
    script = _SCRIPT.format(setup="".join(f"{line}\n" for line in section.setup))
    words = [*everstep_of(section.python), *join_words(section, place, options)]
    return ["bash", "-c", script, "everstep", str(folder), str(lock), *words]
