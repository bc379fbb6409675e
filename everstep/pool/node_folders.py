"""A folder for each node that was created for a pool: what it is, and how it ended. Found again after a restart.

Each number is used once: its folder is created before the node. Folders of old nodes are removed."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from everstep.platforms.fleet import FleetNode
from everstep.storage import private_file

MADE, LEAVES, ENDED = "made.json", "leaves.json", "ended.json"
_NUM_KEPT = 20  # of the ended ones


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeNode:
    number: int
    name: str
    made_at: float
    leaves_at: float = 0.0  # by its time limit
    place: int = 0  # among the nodes of this machine


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeEnd:
    at: float
    reason: str
    is_lost: bool = False
    is_dead: bool = False  # no process is left


class NodeFolders:
    def __init__(self, folder: Path) -> None:
        self.folder = private_file.make_folder(folder)

    def of(self, number: int) -> Path:
        return self.folder / str(number)

    def make(self, node: MadeNode) -> Path:
        """FileExistsError: the number was used."""
        self.of(node.number).mkdir(mode=0o700)
        private_file.write_json(self.of(node.number) / MADE, asdict(node))
        return self.of(node.number)

    def free_number(self, number: int) -> int:
        """This number, or the next larger one that was never used."""
        return max([number, *(each + 1 for each in self._numbers())])

    def live(self) -> Iterator[MadeNode]:
        for number in self._numbers():
            if not (self.of(number) / ENDED).exists() and (found := self._made(number)) is not None:
                yield found

    def asked_at(self, number: int) -> float:
        """When the node was asked to leave; 0: never."""
        try:
            return float(json.loads((self.of(number) / LEAVES).read_text()))
        except FileNotFoundError:
            return 0.0

    def note_asked(self, number: int) -> None:
        private_file.write_json(self.of(number) / LEAVES, time.time())

    def note_end(self, number: int, reason: str, *, is_lost: bool = False, is_dead: bool = False) -> None:
        end = NodeEnd(at=time.time(), reason=reason, is_lost=is_lost, is_dead=is_dead)
        private_file.write_json(self.of(number) / ENDED, asdict(end))
        ended = [each for each in self._numbers() if (self.of(each) / ENDED).exists()]
        for old in ended[:-_NUM_KEPT]:
            shutil.rmtree(self.of(old), ignore_errors=True)

    def ended(self, since: float) -> Iterator[int]:
        """Nodes that have ended since then, and of which processes may be left."""
        for number in self._numbers():
            if (self.of(number) / ENDED).exists() and (end := self._end(number)).at >= since and not end.is_dead:
                yield number

    def note_dead(self, number: int) -> None:
        private_file.write_json(self.of(number) / ENDED, asdict(replace(self._end(number), is_dead=True)))

    def _end(self, number: int) -> NodeEnd:
        return NodeEnd(**json.loads((self.of(number) / ENDED).read_text()))

    def nodes(self, now: float) -> list[FleetNode]:
        return [self._node(made, now) for number in self._numbers() if (made := self._made(number)) is not None]

    def _node(self, made: MadeNode, now: float) -> FleetNode:
        is_leaving = bool(self.asked_at(made.number)) or 0.0 < made.leaves_at <= now
        node = FleetNode(number=made.number, name=made.name, started_at=made.made_at, is_leaving=is_leaving)
        try:
            end = self._end(made.number)
        except FileNotFoundError:
            return node
        return replace(
            node,
            is_over=True,
            is_lost=end.is_lost,
            is_dead=end.is_dead,
            ended_at=end.at,
            reason=f"{made.name}: {end.reason}",
        )

    def _made(self, number: int) -> MadeNode | None:
        """What is known of a node. None: we were killed before we wrote it, and so before we created the node."""
        try:
            return MadeNode(**json.loads((self.of(number) / MADE).read_text()))
        except FileNotFoundError:
            return None

    def _numbers(self) -> list[int]:
        return sorted(int(each.name) for each in self.folder.iterdir() if each.name.isdigit())
