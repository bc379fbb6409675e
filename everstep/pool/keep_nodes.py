"""Manage the nodes of all pools of a pool file: a process beside the coordinator, which must never wait for a platform.

It is an ordinary client of the coordinator, with one thread per pool. Nodes outlive it."""

from __future__ import annotations

import fcntl
import hashlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from everstep import env
from everstep.client.calls import Coordinator
from everstep.errors import UsageError
from everstep.jobs.node import asked_to_end
from everstep.platforms.fleet import Fleet
from everstep.pool.join_command import JoinPlace
from everstep.pool.nodes_keeper import NodesKeeper
from everstep.pool.options import PoolNodesOptions
from everstep.pool.pool_file import PoolSection, read_pool_file
from everstep.pool.temporary_nodes import TemporaryNodesKeeper
from everstep.storage import private_file
from everstep.waiting import wait_until
from everstep.wire.tokens import only_for_workers

_BEFORE_US_S = 30.0  # the process before us ends with its coordinator

Say = Callable[[str], None]


def keep_nodes(options: PoolNodesOptions, say: Say) -> int:
    """Until asked to end."""
    file = read_pool_file(options.file)
    folder = private_file.make_folder(options.folder)
    with asked_to_end() as asked, private_file.append(folder / "nodes.lock") as lock:
        if not wait_until(lambda: _try_lock(lock.fileno()), _BEFORE_US_S, "another process that manages these nodes"):
            message = f"another process already manages the nodes in {folder}"
            hint = "run only one coordinator per pool file, or choose a different --pools-folder"
            raise UsageError(message, hint=hint, code="pool-nodes-kept-elsewhere")
        keepers = [_keeper(name, section, options, folder, say) for name, section in file.pools.items()]
        threads = [threading.Thread(target=each.run, args=(asked,), name="pool nodes", daemon=True) for each in keepers]
        for each in threads:
            each.start()
        if options.until_unused:
            return _until_released(keepers, threads)
        while not asked.wait(1.0):
            if not all(each.is_alive() for each in threads):  # a bug; the next process may do better
                return 1
    return 0


def _until_released(keepers: Sequence[NodesKeeper], threads: Sequence[threading.Thread]) -> int:
    for each in threads:
        each.join()
    return 0 if all(each.is_released for each in keepers) else 1


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _keeper(name: str, section: PoolSection, options: PoolNodesOptions, folder: Path, say: Say) -> NodesKeeper:
    url, tokens = options.coordinator, env.read_token(options.token_file)
    is_secure = section.coordinator.startswith("https:")  # its certificate is valid for that name
    fleet = fleet_of(name, section, url, tokens, folder / name)

    def connect() -> Coordinator:
        return Coordinator(section.coordinator if is_secure else url, tokens, "")

    kind = TemporaryNodesKeeper if options.until_unused else NodesKeeper
    return kind(name, section, fleet, connect, say)


def fleet_of(name: str, section: PoolSection, url: str, tokens: str, folder: Path) -> Fleet:
    place_url, folder = section.coordinator or url, private_file.make_folder(folder).resolve()
    instance = f"{name}-{hashlib.sha256(f'{place_url} {folder}'.encode()).hexdigest()[:8]}"
    token, token_file = only_for_workers(tokens), folder / "token"
    if section.platform.chosen == "kubernetes":
        from everstep.pool.kubernetes_nodes import KubernetesNodes

        return KubernetesNodes(section, JoinPlace(pool=name, coordinator=place_url), folder, instance, token)
    private_file.write(token_file, f"{token}\n".encode())
    place = JoinPlace(pool=name, coordinator=place_url, token_file=str(token_file))
    if section.platform.chosen == "slurm":
        from everstep.pool.slurm_nodes import SlurmNodes

        return SlurmNodes(section, place, folder, f"everstep-{instance}")
    from everstep.pool.local_nodes import LocalNodes

    return LocalNodes(section, place, folder)
