"""`everstep entry`: the entry point of our image. Runs one node of a job, by the variables of its container.

With EVERSTEP_ORDER, EVERSTEP_COORDINATOR has the URL. With ADS's variables, OCI__… and RANK, the first node hosts the
coordinator, as its own process, and the others find it by the folder in OCI__WORK_DIR, or at MASTER_ADDR. A command
given to the container runs instead."""

from __future__ import annotations

import ipaddress
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from everstep import env
from everstep.addresses import address_towards, can_bind
from everstep.errors import PermanentError, UsageError
from everstep.job_file import ads_env
from everstep.job_file.ads_env import AdsNode
from everstep.job_file.order import NodeOrder
from everstep.jobs.find_coordinator import FoundCoordinator, find_coordinator
from everstep.jobs.node import asked_to_end, forget_secrets, read_order, run_node
from everstep.jobs.options import EntryOptions
from everstep.jobs.tokens import write_token
from everstep.launcher import meeting_folder
from everstep.launcher.endpoint import Endpoint, as_job_id, share_token, unshare_token
from everstep.launcher.local_coordinator import READY_S, CoordinatorFiles, await_ready, private_directory
from everstep.launcher.local_coordinator import write_token as make_token
from everstep.launcher.machine import count_gpus
from everstep.platforms import status_file
from everstep.platforms.base import OVER
from everstep.process import Child, own_command
from everstep.storage import private_file

Say = Callable[[str], None]

END_OF_LOG = "end of this node's log"
_FAR_AWAY = "192.0.2.1"  # in no network: only shows which of our addresses leads out
_TURN_S = 0.2
_LAST_WORD_S = 5.0  # the coordinator learns of the end within this time after its only node


def run_entry(options: EntryOptions, say: Say) -> int:
    if options.command:
        _become(options.command)
    try:
        return _be_node(options, say)
    finally:
        if env.value("JOB_RUN_OCID"):
            say(END_OF_LOG)  # for those who follow it: lines arrive late there


def _be_node(options: EntryOptions, say: Say) -> int:
    env.update(ads_env.storage_environment(env.everything()))
    node = ads_env.read_node(env.everything())
    order = _order(options, node)
    if options.coordinator is not None:
        return _run_node(options, order, node.rank, say)
    if node.is_first:
        return _host(options, order, node, say)
    found = _join(options, order, node, say)
    if found.is_over:
        say(f"{found.job} was over before this node came: there is nothing left to do")
        return 0
    token_file = write_token(private_directory(options.log_dir / found.job) / "token", found.token)
    joined = replace(options, coordinator=found.url, token_file=token_file)
    return _run_node(joined, replace(order, job=found.job), node.rank, say)


def _become(command: Sequence[str]) -> None:
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        raise UsageError(
            f"{command[0]}: {error.strerror}", hint="give a command of the image, or none", code="command-not-run"
        ) from None


def _order(options: EntryOptions, node: AdsNode) -> NodeOrder:
    if options.order is not None:
        return read_order(options.order)
    if not ads_env.is_ads(env.everything()):
        hint = f"`everstep run -f` sets {env.ORDER}, ADS sets OCI__ENTRY_SCRIPT; or give a command to run"
        raise UsageError("no order for this node", hint=hint, code="entry-order-missing")
    return ads_env.read_order(env.everything(), _new_id(node), num_gpus=count_gpus())


def _new_id(node: AdsNode) -> str:
    """Nodes that meet at an address all derive the same ID; otherwise the first node chooses it."""
    if node.host and not node.folder:
        return as_job_id(f"job-{node.host}-{node.port}")
    return time.strftime("%Y%m%d-%H%M%S") + f"-{os.urandom(2).hex()}"


def _run_node(options: EntryOptions, order: NodeOrder, rank: int | None, say: Say) -> int:
    log_dir = options.log_dir / order.job
    return run_node(replace(options, order=order.to_json(), node_rank=rank, log_dir=log_dir), say)


def _join(options: EntryOptions, order: NodeOrder, node: AdsNode, say: Say) -> FoundCoordinator:
    return find_coordinator(
        order.job,
        folder=node.folder,
        endpoint=Endpoint(host=node.host, port=node.port) if node.host else None,
        is_job_known=options.order is not None,
        token_file=options.token_file,
        patience_s=node.timeout_s,
        say=say,
    )


# --- the first node -------------------------------------------------------------------------------


def _host(options: EntryOptions, order: NodeOrder, node: AdsNode, say: Say) -> int:
    """Run the coordinator and this node's agent, as two processes. Returns the job's exit code."""
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
        is_alone = order.max_nodes == 1
        return attend(coordinator, agent, asked, folder=folder, grace_s=order.grace_s, is_alone=is_alone, say=say)


def attend(
    coordinator: Child, agent: Child, asked: threading.Event, *, folder: Path, grace_s: float, is_alone: bool, say: Say
) -> int:
    """Until the coordinator has ended. When asked to end, this node leaves first, then the job is stopped. The job is
    also stopped if its only node has ended without ending it: no other node would ever come. A job that is over is
    not stopped: its coordinator is busy with the record, and a signal could end it with another exit code."""
    told_at, is_stopped, left_at = 0.0, False, 0.0
    while (ended := coordinator.wait(0.0)) is None:
        if asked.is_set() and not told_at:
            told_at = time.monotonic()
            agent.signal(signal.SIGTERM, is_for_group=False)
        has_left = (gone := agent.wait(0.0)) is not None
        left_at = left_at or (time.monotonic() if has_left else 0.0)
        is_late = is_alone and has_left and time.monotonic() > left_at + _LAST_WORD_S
        if is_late and not is_stopped and not _is_over(folder):
            is_stopped = True
            say(f"the only node ended ({gone}) before the job did: stopping the job")
            coordinator.signal(signal.SIGTERM, is_for_group=False)
        may_stop = told_at and (has_left or time.monotonic() > told_at + grace_s)
        if may_stop and not is_stopped and not _is_over(folder):
            is_stopped = True  # once: a second signal would end it before it reports how the job ended
            coordinator.signal(signal.SIGTERM, is_for_group=False)
        waited_for = [coordinator, *([] if has_left else [agent])]
        select.select([each.fileno() for each in waited_for], [], [], _TURN_S)
    agent.wait(grace_s)
    return ended.code if ended.code >= 0 else 128 - ended.code


def _is_over(folder: Path) -> bool:
    state = status_file.read(folder)
    return state is not None and state[0] in OVER


def _give_token(options: EntryOptions, path: Path) -> None:
    given = env.read_token(options.token_file) if options.token_file is not None else env.token()
    if given is not None:
        private_file.write(path, given.encode() + b"\n")
    make_token(path)


@contextmanager
def _known(node: AdsNode, job: str, url: str, address: str, token: str) -> Iterator[None]:
    """Known to the other nodes, while the job runs."""
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
    """The address where other nodes reach this one. A single node needs none."""
    if node.host:
        return node.host
    if node.num_nodes == 1:
        return "127.0.0.1"
    try:
        return address_towards(_address_in(env.value(env.NETWORK)))
    except UsageError:  # no way out of this machine
        return "127.0.0.1"


def _address_in(network: str | None) -> str:
    """An address in the network, to find the route; a machine may be in several networks."""
    if network is None:
        return _FAR_AWAY
    try:
        return str(ipaddress.ip_network(network, strict=False)[1])
    except (ValueError, IndexError):
        raise UsageError(
            f"{env.NETWORK}={network} is not a network", hint="give a CIDR, such as 10.0.1.0/24", code="network-invalid"
        ) from None


def _start_coordinator(
    node: AdsNode, address: str, files: CoordinatorFiles, environment: Mapping[str, str]
) -> tuple[Child, str]:
    """On the usual port; if that is taken and the nodes need not know it beforehand, on any free one."""
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
            if not ports:  # otherwise another process took it between the check and the start
                raise
