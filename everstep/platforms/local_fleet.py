"""Nodes as processes of this machine, each with its own folder, log, and GPUs; they end with this process."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from everstep import env
from everstep.errors import PermanentError
from everstep.job_file.order import NodeOrder
from everstep.platforms.fleet import Fleet, FleetNode
from everstep.process import Child, Exit, own_command
from everstep.storage import private_file

_LEAVE_S = 10.0  # more than their grace


@dataclass(frozen=True, kw_only=True, slots=True)
class _LocalNode:
    node: FleetNode
    child: Child
    place: int  # among the running nodes; decides which GPUs are its own


def wanted_path(folder: Path) -> Path:
    """The number of nodes that the user wants."""
    return folder / "wanted"


def node_log(folder: Path, number: int) -> Path:
    return folder / f"node-{number}.log"


class LocalFleet(Fleet):
    makes_nodes = True

    def __init__(self, order: NodeOrder, folder: Path, gpus: Sequence[str] = ()) -> None:
        """`gpus`: those of this machine, by the names that CUDA_VISIBLE_DEVICES uses."""
        self._order, self._folder, self._gpus = order, folder, gpus
        self._nodes: dict[str, _LocalNode] = {}

    def prepare(self) -> None:
        """Start the nodes: they import torch while the coordinator starts."""
        for number in range(self.wanted()):
            self.add(number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.dissolve(is_good=False)

    def wanted(self) -> int:
        try:
            return int(wanted_path(self._folder).read_text())
        except FileNotFoundError:
            return self._order.max_nodes

    def nodes(self) -> Sequence[FleetNode]:
        for name, each in self._nodes.items():
            if not each.node.is_over and (ended := each.child.wait(0.0)) is not None:
                self._nodes[name] = replace(each, node=_ended(each.node, ended))
        return [each.node for each in self._nodes.values()]

    def add(self, number: int) -> None:
        """The first nodes take the first ranks; later ones take free ranks."""
        name = f"node-{number}"
        rank = {"--node-rank": str(number)} if number < self._order.min_nodes else {}
        options = {"--name": name, "--log-dir": str(self._folder / name), **rank}
        place = self._free_place()
        log = private_file.descriptor(node_log(self._folder, number), os.O_WRONLY | os.O_APPEND)
        try:
            child = Child.start(
                own_command("node", options), env=self._environment(place), output=log, cwd=self._order.workdir or None
            )
        except OSError as error:
            raise PermanentError(f"{name} cannot be started: {error}", code="node-not-started") from None
        finally:
            os.close(log)
        self._nodes[name] = _LocalNode(
            node=FleetNode(number=number, name=name, started_at=time.time()), child=child, place=place
        )

    def remove(self, name: str) -> None:
        each = self._nodes[name]
        each.child.signal(signal.SIGTERM, is_for_group=False)
        self._nodes[name] = replace(each, node=replace(each.node, is_leaving=True))

    def dissolve(self, *, is_good: bool) -> None:
        for node in self.nodes():
            if not node.is_over and not node.is_leaving:
                self.remove(node.name)
        deadline = time.monotonic() + self._order.grace_s + _LEAVE_S
        for each in list(self._nodes.values()):
            if each.child.wait(max(0.0, deadline - time.monotonic())) is None:
                each.child.kill()

    def _free_place(self) -> int:
        """The first place that no node holds. Leaving nodes do not count: their GPUs will soon be free."""
        taken = {each.place for each in self._nodes.values() if not each.node.is_over and not each.node.is_leaving}
        return next(place for place in itertools.count() if place not in taken)

    def _environment(self, place: int) -> dict[str, str]:
        ours = {
            env.ORDER: self._order.to_json(),
            env.COORDINATOR: str(self._folder / "coordinator.url"),  # a file: the coordinator writes it
            env.TOKEN_FILE: str(self._folder / "token"),
        }
        secrets = self._folder / "secrets.json"
        ours |= share_of(self._gpus, self._order.gpus, place)
        return {**env.everything(), **ours, **({env.SECRETS_FILE: str(secrets)} if secrets.exists() else {})}


def share_of(gpus: Sequence[str], num_gpus: int, place: int) -> dict[str, str]:
    """The variable that limits a node to its own GPUs; none if no GPUs were promised."""
    own = gpus[place * num_gpus : (place + 1) * num_gpus]
    return {env.VISIBLE_GPUS: ",".join(own)} if num_gpus else {}


def _ended(node: FleetNode, ended: Exit) -> FleetNode:
    return replace(node, is_over=True, ended_at=time.time(), reason=f"{node.name}: {ended}")
