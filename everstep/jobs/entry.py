"""`everstep entry`: what our image runs. One node of a job, whoever has started the container and however it is told.

By EVERSTEP_ORDER, with the coordinator's URL beside it; or, as ADS's images are told, by OCI__… and RANK: then the
first node hosts the coordinator, as a process of its own, and the others find it by the folder in OCI__WORK_DIR, or at
MASTER_ADDR. A command given to the container is run instead."""

from __future__ import annotations

import ipaddress
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from everstep import env
from everstep.addresses import address_towards, can_bind
from everstep.errors import JobFinished, PermanentError, UsageError
from everstep.job_file import ads_env
from everstep.job_file.ads_env import AdsNode
from everstep.job_file.order import NodeOrder
from everstep.jobs.asked_to_end import asked_to_end
from everstep.jobs.node import NodeRequest, forget_secrets, read_order, run_node
from everstep.launcher import meeting_folder
from everstep.launcher.endpoint import Endpoint, as_job_id, join, share_token, unshare_token
from everstep.launcher.local_coordinator import READY_S, CoordinatorFiles, await_ready, private_directory, write_token
from everstep.launcher.machine import count_gpus
from everstep.process import Child, own_command
from everstep.storage import private_file

Say = Callable[[str], None]

END_OF_LOG = "end of this node's log"
_FAR_AWAY = "192.0.2.1"  # of no network: only asked for which of our addresses leads out
_TURN_S = 0.2
_LAST_WORD_S = 5.0  # a job that is over is known to be when its only node ends


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryRequest:
    command: Sequence[str]  # of the container, to be run as it is
    order: str | None
    coordinator_url: str | None
    token_file: Path | None
    name: str | None
    log_dir: Path
    address: str | None
    deadline: float | None


def run_entry(request: EntryRequest, say: Say) -> int:
    if request.command:
        _become(request.command)
    try:
        return _be_node(request, say)
    finally:
        if env.is_job_run():
            say(END_OF_LOG)  # so that whoever follows it knows: lines come late there


def _be_node(request: EntryRequest, say: Say) -> int:
    os.environ.update(ads_env.storage_environment(os.environ))
    node = ads_env.read_node(os.environ)
    order = _order(request, node)
    if request.coordinator_url is not None:
        return _run_node(request, order, node.rank)
    if node.is_first:
        return _host(request, order, node, say)
    try:
        url, order, token = _join(request, order, node, say)
    except JobFinished as late:
        say(f"{late.reason}: nothing is left to do")
        return 0
    folder = private_directory(request.log_dir / order.job)
    private_file.write(folder / "token", token.encode() + b"\n")
    return _run_node(replace(request, coordinator_url=url, token_file=folder / "token"), order, node.rank)


def _become(command: Sequence[str]) -> None:
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        raise UsageError(f"{command[0]}: {error.strerror}", hint="a command of the image, or none") from None


def _order(request: EntryRequest, node: AdsNode) -> NodeOrder:
    if request.order is not None:
        return read_order(request.order)
    if not ads_env.is_ads(os.environ):
        raise UsageError(
            "nothing says what this node is to do",
            hint=f"{env.ORDER} is set by `everstep run -f`, OCI__ENTRY_SCRIPT by ADS; or give a command to run",
        )
    return ads_env.read_order(os.environ, _new_id(node), num_gpus=count_gpus())


def _new_id(node: AdsNode) -> str:
    """Where nodes meet at an address, all of them must know it; else it is the first one's to choose."""
    if node.host and not node.folder:
        return as_job_id(f"job-{node.host}-{node.port}")
    return time.strftime("%Y%m%d-%H%M%S") + f"-{os.urandom(2).hex()}"


def _run_node(request: EntryRequest, order: NodeOrder, rank: int | None) -> int:
    return run_node(
        NodeRequest(
            order=order.to_json(),
            coordinator_url=request.coordinator_url,
            token_file=request.token_file,
            name=request.name,
            node_rank=rank,
            log_dir=request.log_dir / order.job,
            address=request.address,
            deadline=request.deadline,
        )
    )


def _join(request: EntryRequest, order: NodeOrder, node: AdsNode, say: Say) -> tuple[str, NodeOrder, str]:
    """The coordinator's URL, the order with the job's id, and the token."""
    if node.folder:
        found = meeting_folder.wait_for(
            node.folder, node.timeout_s, say, job=order.job if request.order is not None else None
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
    return endpoint.url, order, join(endpoint, order.job, request.token_file, node.timeout_s, say)


# --- the first node -------------------------------------------------------------------------------


def _host(request: EntryRequest, order: NodeOrder, node: AdsNode, say: Say) -> int:
    """The coordinator and this node's agent, as two processes. The exit code is the job's."""
    folder = private_directory(request.log_dir / order.job)
    files = CoordinatorFiles(directory=folder)
    _give_token(request, files.token)
    private_file.write(folder / "order.json", order.to_json().encode())
    address = request.address or _own_address(node)
    environment = {
        **{name: value for name, value in os.environ.items() if name != env.TOKEN},
        env.ORDER: str(folder / "order.json"),
        env.TOKEN_FILE: str(files.token),
    }
    with ExitStack() as open_things:
        asked = open_things.enter_context(asked_to_end())
        coordinator, url = _start_coordinator(node, address, files, environment)
        open_things.callback(coordinator.kill)
        open_things.enter_context(_known(node, order.job, url, address, env.read_token(files.token)))
        say(f"this node hosts the coordinator of {order.job}, at {url}")
        options = {
            "--node-rank": "0",
            "--log-dir": str(folder / "node-0"),
            **({} if request.name is None else {"--name": request.name}),
            **({} if request.deadline is None else {"--deadline": str(request.deadline)}),
        }
        agent = Child.start(own_command("node", options), env={**environment, env.COORDINATOR: url})
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


def _give_token(request: EntryRequest, path: Path) -> None:
    given = env.read_token(request.token_file) if request.token_file is not None else env.token()
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
        return address_towards(_somebody_in(env.network()))
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
    ports = [node.port] if is_fixed else [*([node.port] if can_bind(address, node.port) else []), 0]
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
