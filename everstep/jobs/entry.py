"""`everstep entry`: what our image runs. One node of a job, whoever has started the container and however it is told.

By EVERSTEP_ORDER, with the coordinator's URL beside it; or, as ADS's images are told, by OCI__… and RANK: then the
first node hosts the coordinator, as a process of its own, and the others find it by the folder in OCI__WORK_DIR, or at
MASTER_ADDR. A command given to the container is run instead."""

from __future__ import annotations

import ipaddress
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from everstep import env
from everstep.errors import JobFinished, PermanentError, UsageError
from everstep.job_file import ads_env
from everstep.job_file.ads_env import AdsNode
from everstep.job_file.order import NodeOrder
from everstep.jobs.asked_to_end import asked_to_end
from everstep.jobs.node import forget_secrets, read_order, run_node
from everstep.jobs.options import EntryOptions
from everstep.launcher import meeting_folder
from everstep.launcher.agent import node_address
from everstep.launcher.endpoint import Endpoint, as_job_id, can_bind, join, share_token, unshare_token
from everstep.launcher.local_coordinator import READY_S, CoordinatorFiles, await_ready, private_directory, write_token
from everstep.launcher.machine import count_gpus
from everstep.process import Child, own_command
from everstep.storage import private_file

Say = Callable[[str], None]

END_OF_LOG = "end of this node's log"
_FAR_AWAY = "192.0.2.1"  # of no network: only asked for which of our addresses leads out
_TURN_S = 0.2
_LAST_WORD_S = 5.0  # a job that is over is known to be when its only node ends


def run_entry(options: EntryOptions, say: Say) -> int:
    if options.command:
        _become(options.command)
    try:
        return _be_node(options, say)
    finally:
        if env.is_job_run():
            say(END_OF_LOG)  # so that whoever follows it knows: lines come late there


def _be_node(options: EntryOptions, say: Say) -> int:
    env.update(ads_env.storage_environment(env.everything()))
    node = ads_env.read_node(env.everything())
    order = _order(options, node)
    if options.coordinator is not None:
        return _run_node(options, order, node.rank, say)
    if node.is_first:
        return _host(options, order, node, say)
    try:
        url, order, token = _join(options, order, node, say)
    except JobFinished as late:
        say(f"{late.reason}: nothing is left to do")
        return 0
    folder = private_directory(options.log_dir / order.job)
    private_file.write(folder / "token", token.encode() + b"\n")
    return _run_node(replace(options, coordinator=url, token_file=folder / "token"), order, node.rank, say)


def _become(command: Sequence[str]) -> None:
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        raise UsageError(f"{command[0]}: {error.strerror}", hint="a command of the image, or none") from None


def _order(options: EntryOptions, node: AdsNode) -> NodeOrder:
    if options.order is not None:
        return read_order(options.order)
    if not ads_env.is_ads(env.everything()):
        raise UsageError(
            "nothing says what this node is to do",
            hint=f"{env.ORDER} is set by `everstep run -f`, OCI__ENTRY_SCRIPT by ADS; or give a command to run",
        )
    return ads_env.read_order(env.everything(), _new_id(node), num_gpus=count_gpus())


def _new_id(node: AdsNode) -> str:
    """Where nodes meet at an address, all of them must know it; else it is the first one's to choose."""
    if node.host and not node.folder:
        return as_job_id(f"job-{node.host}-{node.port}")
    return time.strftime("%Y%m%d-%H%M%S") + f"-{os.urandom(2).hex()}"


def _run_node(options: EntryOptions, order: NodeOrder, rank: int | None, say: Say) -> int:
    log_dir = options.log_dir / order.job
    return run_node(replace(options, order=order.to_json(), node_rank=rank, log_dir=log_dir), say)


def _join(options: EntryOptions, order: NodeOrder, node: AdsNode, say: Say) -> tuple[str, NodeOrder, str]:
    """The coordinator's URL, the order with the job's id, and the token."""
    if node.folder:
        found = meeting_folder.wait_for(
            node.folder, node.timeout_s, say, job=order.job if options.order is not None else None
        )
        if found.is_over:
            raise JobFinished(f"{found.job} was over before this node came")
        return found.url, replace(order, job=found.job), found.token
    if not node.host:
        raise UsageError(
            "nothing says where the nodes meet",
            hint="OCI__WORK_DIR: a folder that all of them reach; or MASTER_ADDR, and EVERSTEP_TOKEN on all of them",
        )
    endpoint = Endpoint(host=node.host, port=node.port)
    return endpoint.url, order, join(endpoint, order.job, options.token_file, node.timeout_s, say)


# --- the first node -------------------------------------------------------------------------------


def _host(options: EntryOptions, order: NodeOrder, node: AdsNode, say: Say) -> int:
    """The coordinator and this node's agent, as two processes. The exit code is the job's."""
    folder = private_directory(options.log_dir / order.job)
    files = CoordinatorFiles(directory=folder)
    _give_token(options, files.token)
    private_file.write(folder / "order.json", order.to_json().encode())
    address = options.address or _own_address(node)
    environment = {
        **{name: value for name, value in env.everything().items() if name != env.TOKEN},
        env.ORDER: str(folder / "order.json"),
        env.TOKEN_FILE: str(files.token),
    }
    with ExitStack() as open_things:
        asked = open_things.enter_context(asked_to_end())
        coordinator, url = _start_coordinator(node, address, files, environment)
        open_things.callback(coordinator.kill)
        open_things.enter_context(_known(node, order.job, url, address, env.read_token(files.token)))
        say(f"this node hosts the coordinator of {order.job}, at {url}")
        words = {
            "--node-rank": "0",
            "--log-dir": str(folder / "node-0"),
            **({} if options.name is None else {"--name": options.name}),
            **({} if options.deadline is None else {"--deadline": str(options.deadline)}),
        }
        agent = Child.start(own_command("node", words), env={**environment, env.COORDINATOR: url})
        open_things.callback(agent.kill)
        open_things.callback(forget_secrets, say)
        return _attend(coordinator, agent, asked, grace_s=order.grace_s, is_alone=order.max_nodes == 1, say=say)


def _attend(
    coordinator: Child, agent: Child, asked: threading.Event, *, grace_s: float, is_alone: bool, say: Say
) -> int:
    """Until the job is over. Told to go: first this node leaves in good order, then the job is stopped. So it is when
    the only node has ended and the coordinator knows no end of the job: nobody else would ever come."""
    told_at, is_stopped, left_at = 0.0, False, 0.0
    while (ended := coordinator.wait(0.0)) is None:
        if asked.is_set() and not told_at:
            told_at = time.monotonic()
            agent.signal(signal.SIGTERM, is_for_group=False)
        has_left = (gone := agent.wait(0.0)) is not None
        left_at = left_at or (time.monotonic() if has_left else 0.0)
        if is_alone and has_left and not is_stopped and time.monotonic() > left_at + _LAST_WORD_S:
            is_stopped = True
            say(f"the only node has ended ({gone}) before the job did: it is stopped")
            coordinator.signal(signal.SIGTERM, is_for_group=False)
        if told_at and not is_stopped and (has_left or time.monotonic() > told_at + grace_s):
            is_stopped = True  # once: a second one would end it before it has told how the job ended
            coordinator.signal(signal.SIGTERM, is_for_group=False)
        waited_for = [coordinator, *([] if has_left else [agent])]
        select.select([each.fileno() for each in waited_for], [], [], _TURN_S)
    agent.wait(grace_s)
    return ended.code if ended.code >= 0 else 128 - ended.code


def _give_token(options: EntryOptions, path: Path) -> None:
    given = env.read_token(options.token_file) if options.token_file is not None else env.token()
    if given is not None:
        private_file.write(path, given.encode() + b"\n")
    write_token(path)


@contextmanager
def _known(node: AdsNode, job: str, url: str, address: str, token: str) -> Iterator[None]:
    """To the other nodes, as long as the job runs."""
    met = meeting_folder.Meeting(url=url, job=job, token=token, address=address)
    if node.folder:
        meeting_folder.publish(node.folder, met)
    else:
        share_token(job, token)
    try:
        yield
    finally:
        if node.folder:
            meeting_folder.withdraw(node.folder, met)
        else:
            unshare_token(job, token)


def _own_address(node: AdsNode) -> str:
    """Where other nodes reach this one. Alone, it need not be reached."""
    if node.host:
        return node.host
    if node.num_nodes == 1:
        return "127.0.0.1"
    try:
        return node_address(_somebody_in(env.network()), 9)
    except UsageError:  # no way out of this machine
        return "127.0.0.1"


def _somebody_in(network: str | None) -> str:
    """An address to ask the way to; a machine may be in several networks."""
    if network is None:
        return _FAR_AWAY
    try:
        return str(ipaddress.ip_network(network, strict=False)[1])
    except (ValueError, IndexError):
        raise UsageError(f"{env.NETWORK}={network} is no network", hint="a CIDR, such as 10.0.1.0/24") from None


def _start_coordinator(
    node: AdsNode, address: str, files: CoordinatorFiles, environment: Mapping[str, str]
) -> tuple[Child, str]:
    """On the usual port. Where that is another's, and nobody has to know it beforehand: on any that is free."""
    is_fixed = node.is_port_given or (node.host and not node.folder)
    ports = [node.port] if is_fixed else [*([node.port] if _is_free(address, node.port) else []), 0]
    while True:
        files.ready.unlink(missing_ok=True)
        where = {"--folder": str(files.directory), "--host": address, "--port": str(ports.pop(0))}
        child = Child.start(own_command("coordinate", where), env=environment)
        try:
            return child, await_ready(child, files, READY_S)
        except PermanentError:
            child.kill()
            if not ports:  # else somebody took it between the look and the start
                raise


def _is_free(address: str, port: int) -> bool:
    return can_bind(socket.AF_INET6 if ":" in address else socket.AF_INET, (address, port))
