"""A pool's nodes as Slurm jobs, one per node. Their names contain the pool and the number, so that they are found
again. Needs only Slurm's own commands, and a folder that all nodes see."""

from __future__ import annotations

import getpass
import time
from collections.abc import Sequence
from pathlib import Path

from everstep.errors import EverstepError
from everstep.launcher.logs import tail
from everstep.platforms.base import Ticket
from everstep.platforms.batch_queue import Queued, ask
from everstep.platforms.fleet import Fleet, FleetNode
from everstep.platforms.slurm import parse_squeue
from everstep.platforms.slurm_script import pool_node_script
from everstep.pool.join_command import JoinPlace, everstep_of, join_words
from everstep.pool.node_folders import MadeNode, NodeFolders
from everstep.pool.pool_file import PoolSection
from everstep.storage import private_file

_LOOK_S = 3.0  # between two questions to a controller that serves many
_UNKNOWN_S = 60.0  # a job that was submitted may be unknown for this long
_LATE_S = 10.0  # after its grace, a node that has not left is canceled
_NOT_ITS_FAULT = ("NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "CANCELLED", "REVOKED")
_NODE_GONE = ("NODE_FAIL", "BOOT_FAIL")
_COLUMNS = "%i|%j|%T|%N|%r"


class SlurmNodes(Fleet):
    lives_on = makes_nodes = True

    def __init__(self, section: PoolSection, place: JoinPlace, folder: Path, instance: str) -> None:
        """`instance`: of this pool, unlike any other's of this user."""
        self._section, self._place, self._instance = section, place, instance
        self._folders = NodeFolders(folder)
        self._looked_at = float("-inf")
        self._queue: dict[int, Queued] = {}

    def nodes(self) -> Sequence[FleetNode]:
        if time.monotonic() - self._looked_at > _LOOK_S:
            self._queue = self._look()
            self._looked_at = time.monotonic()
            for each in list(self._folders.live()):
                self._note(each, self._queue.get(each.number))
        return self._folders.nodes(time.time())

    def add(self, number: int) -> None:
        number = self._folders.free_number(number)
        made = MadeNode(number=number, name=f"{self._place.pool}-{number}", made_at=time.time())
        folder = self._folders.make(made)
        private_file.write_text(
            folder / "node.sh", node_script(self._section, self._place, self._instance, made, folder)
        )
        hint = "see platform.slurm in the pool file, and `sinfo`"
        try:
            ask(["sbatch", "--parsable", str(folder / "node.sh")], hint=hint)
        except EverstepError as error:
            self._folders.note_end(number, error.message)
            raise
        self._looked_at = float("-inf")

    def remove(self, name: str) -> None:
        each = next(node for node in self._folders.live() if node.name == name)
        if self._folders.asked_at(each.number):
            return
        self._folders.note_asked(each.number)  # first: a second signal would kill its trials
        job = self._look().get(each.number)
        if job is not None and job.is_live:
            gently = ["--batch", "--signal=TERM"] if job.state == "running" else []
            ask(["scancel", *gently, job.id])
        self._looked_at = float("-inf")

    def _look(self) -> dict[int, Queued]:
        """Our jobs by number."""
        said = ask(["squeue", "-h", "-t", "all", f"--user={getpass.getuser()}", "-o", _COLUMNS])
        prefix = f"{self._instance}-"
        jobs = [each for each in parse_squeue(said) if each.name.startswith(prefix)]
        return {int(number): each for each in jobs if (number := each.name.removeprefix(prefix)).isdigit()}

    def _note(self, made: MadeNode, job: Queued | None) -> None:
        asked_at, now = self._folders.asked_at(made.number), time.time()
        if job is None:
            if now - made.made_at > _UNKNOWN_S:
                self._folders.note_end(made.number, self._last_words(made) or "Slurm no longer knows it")
        elif not job.is_live:
            is_lost = job.native.split()[0].rstrip("+") in _NOT_ITS_FAULT
            said = self._last_words(made) or f"{job.native} {job.reason}"
            self._folders.note_end(made.number, said, is_lost=is_lost, is_dead=self._is_dead(job))
        elif asked_at and now > asked_at + self._section.grace + _LATE_S:
            ask(["scancel", job.id])

    def _is_dead(self, job: Queued) -> bool:
        """A job is over when its node has seen all its processes end; or when Slurm has given the node up."""
        if not job.where or job.native.split()[0].rstrip("+") in _NODE_GONE:
            return False
        try:
            said = ask(["sinfo", "-h", "-N", f"--nodes={job.where}", "-o", "%T"]).split()
        except EverstepError:  # no proof
            return False
        return bool(said) and all(is_in_touch(each) for each in said)

    def _last_words(self, made: MadeNode) -> str:
        said = tail(self._folders.of(made.number) / "node.log")
        return said[-1].removeprefix("everstep: ") if said else ""


def is_in_touch(native: str) -> bool:
    """Of a node's state: Slurm's controller hears it. `*` means that it does not respond."""
    return native[-1:].isalpha() and not native.startswith(("down", "drain", "unknown", "fail", "power", "reboot"))


def node_script(section: PoolSection, place: JoinPlace, instance: str, made: MadeNode, folder: Path) -> str:
    """Pure. Shown by `everstep pool check --show`."""
    ticket = Ticket(id=f"{instance}-{made.number}", folder=folder, workdir=folder)
    options = {"--name": made.name, "--folder": str(folder / "agent")}
    words = [*everstep_of(section.python), *join_words(section, place, options)]
    return pool_node_script(section.job(place.pool), ticket, words)
