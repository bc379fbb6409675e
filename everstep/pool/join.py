"""`everstep pool join`: from options to the pool agent of this node."""

from __future__ import annotations

import fcntl
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from everstep import env
from everstep.checkpoint.memory import look_for_memory
from everstep.client.calls import Coordinator
from everstep.doctor.facts import gather_quickly
from everstep.doctor.finding import ERROR, WARNING
from everstep.doctor.here import judge_pool_node
from everstep.errors import PermanentError, UsageError
from everstep.jobs.tokens import token_path, worker_token_path
from everstep.launcher.local_coordinator import private_directory
from everstep.launcher.machine import count_gpus
from everstep.launcher.spare_saver import SpareSaver
from everstep.pool.agent import PoolAgent, PoolAgentSpec
from everstep.pool.leave_times import LeaveTimes
from everstep.pool.machine_kind import machine_kind, num_slots
from everstep.pool.node_environment import node_environment
from everstep.pool.options import PoolJoinOptions
from everstep.storage import private_file

_ANSWER_S = 2.0  # of the coordinator, about its clock
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]")


def join_pool(options: PoolJoinOptions, say: Callable[[str], None]) -> int:
    name, pool = options.name or socket.gethostname(), options.pool
    slots = num_slots(options.slots)
    if options.slots == "cpu":
        env.update({env.VISIBLE_GPUS: ""})
    place = options.folder or env.home() / "pool" / _NOT_IN_A_NAME.sub("_", f"{pool}-{name}")
    folder = private_directory(place)
    # Before the lock is taken, which the saver must not hold: it may outlive this process.
    with SpareSaver() as spare, _alone(folder, name):
        token = worker_token_path(token_path(options.token_file, folder), folder)
        examine(options.coordinator, token, folder, slots, say)
        memory_bytes = look_for_memory().all_bytes
        spec = PoolAgentSpec(
            url=options.coordinator,
            token_file=token,
            pool=pool,
            agent=name,
            num_slots=slots,
            kind=machine_kind(has_gpus=count_gpus() > 0),
            folder=folder,
            times=LeaveTimes(until=options.until or 0.0, patience_s=options.patience),
            environment=node_environment(slots, memory_bytes),
            most_parked_bytes=int(options.parked_memory * memory_bytes),
        )
        return PoolAgent(spec, say, spare).run()


def examine(url: str, token_file: Path, folder: Path, num_slots: int, say: Callable[[str], None]) -> None:
    """Before this node gets any trial. PermanentError: trials would fail here."""
    with closing(Coordinator(url, env.read_token(token_file), "", answer_s=_ANSWER_S)) as coordinator:
        findings = judge_pool_node(gather_quickly(folder, coordinator), num_slots=num_slots)
    for each in findings:
        if each.level == WARNING:
            say(f"{each.check}: {each.text}; {each.hint}")
    errors = [each for each in findings if each.level == ERROR]
    if errors:
        text = "; ".join(f"{each.check}: {each.text}" for each in errors)
        raise PermanentError(f"this node cannot run trials: {text}", hint=errors[0].hint, code="pool-node-unhealthy")


@contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    """Two agents with one name would end each other's trials."""
    with private_file.append(folder / "agent.lock") as lock:
        try:
            with private_file.if_it_can_lock():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "stop that agent first, or choose a different --name"
            raise UsageError(
                f"an agent named {name} is already running in {folder}", hint=hint, code="pool-agent-running"
            ) from None
        yield
