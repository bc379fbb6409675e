"""torchrun's rendezvous, held by our coordinator: each of its agents is a node of a job, each round an attempt.

The coordinator is the one at `--rdzv-endpoint`, or this process hosts one there if there is none and the address is
ours. Beyond torchrun: all nodes learn at once of a node that dies, comes or loses a worker; each attempt has its own
store, so no key of an earlier one is ever read; no node without the token takes part.
torchrun still starts and ends the workers, and counts restarts, node by node."""

from __future__ import annotations

import logging
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path

from torch.distributed import DistError, Store, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from everstep import env
from everstep.addresses import address_towards
from everstep.client.calls import Coordinator
from everstep.errors import CoordinatorUnreachable, EverstepError, PeerLost
from everstep.launcher.endpoint import host_or_join, join, save_token
from everstep.launcher.external_node import ExternalNode, NodeRole
from everstep.torchrun.parameters import MeetingOptions, read_parameters
from everstep.waiting import wait_until
from everstep.wire import JobSpec, Policy

log = logging.getLogger("everstep")

BACKEND = "everstep"
_KNOCK_S = 1.0
_LOOK_S = 0.02
_MEET_S = 600.0  # for all nodes of an attempt: one that dies meanwhile closes it
_STORE_S = 60.0  # for each of torchrun's own calls to the store
_HERE = "everstep/here"


class Handler(RendezvousHandler):
    def __init__(self, parameters: RendezvousParameters) -> None:
        self._meeting = meeting = read_parameters(parameters)
        self._open_things = ExitStack()
        try:
            self._url, self._token = self._open_things.enter_context(_coordinator(meeting))
            with closing(self._connect()) as coordinator:
                view = coordinator.create_job(JobSpec(name="torchrun", policy=_policy(meeting)))
            if view.is_finished or view.is_stopped:
                raise RendezvousClosedError(f"job {meeting.job} is over: {view.reason}; give another --rdzv-id")
            self._address = meeting.address or address_towards(meeting.endpoint.host)
            self._node = ExternalNode(
                self._connect,
                agent=f"{socket.gethostname()}-{secrets.token_hex(3)}",
                address=self._address,
                heartbeat_s=Policy().heartbeat_s,
                say=_say,
            )
        except BaseException:
            self._open_things.close()
            raise

    def _connect(self) -> Coordinator:
        return Coordinator(self._url, env.read_token(self._token), self._meeting.job)

    # --- what torchrun asks -----------------------------------------------------------------------

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._meeting.run_id

    @property
    def use_agent_store(self) -> bool:
        """Rank 0 of the workers opens theirs, a new one for each attempt."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        while True:
            part = self._next_part()
            order = part.order
            try:
                store = self._open_store(part)
                where = RendezvousStoreInfo.build(order.node_rank, store, self._address)
            except (DistError, OSError, PeerLost) as error:
                _say(f"attempt {order.number} did not begin, trying again: {error}")
                continue
            # Not as an agent tells its workers: the engine in them must not join the job.
            for worker in order.workers[:1]:
                env.update({env.REPORT_AS: f"{self._url} {self._meeting.job} {worker} {self._token}"})
            _say(f"attempt {order.number}: node {order.node_rank} of {order.num_nodes}")
            return RendezvousInfo(store, order.node_rank, order.num_nodes, where)

    def num_nodes_waiting(self) -> int:
        """More than 0: torchrun ends the workers and comes to the next rendezvous."""
        return int(self._node.is_attempt_over)

    def is_closed(self) -> bool:
        return self._node.is_job_over

    def set_closed(self) -> None:
        self._node.stop("closed by a node's torchrun")

    def shutdown(self) -> bool:
        """torchrun's last call, made while the error that ends it, if any, is on its way up."""
        error = sys.exc_info()[1]
        if isinstance(error, Exception) and not self._node.is_job_over:
            self._node.stop(f"torchrun on {self._address} failed: {str(error).strip().splitlines()[0]}")
        elif error is None:
            self._node.finish()
        self._node.leave()
        self._open_things.close()
        return True

    # --- an attempt -------------------------------------------------------------------------------

    def _next_part(self) -> NodeRole:
        try:
            return self._node.next_attempt()
        except CoordinatorUnreachable as error:
            raise RendezvousConnectionError(str(error)) from error
        except EverstepError as error:
            raise RendezvousClosedError(str(error)) from error

    def _open_store(self, part: NodeRole) -> Store:
        """The agents' store, with all of them there."""
        order = part.order
        with part.listener as listener:
            if order.node_rank > 0:
                listener.close()
                self._await_listener(order.master_address, order.master_port)
                store = _store(order.master_address, order.master_port)
            elif order.master_port == listener.getsockname()[1]:
                store = _store(order.master_address, order.master_port, listener.detach())
            else:
                raise PeerLost(f"port {order.master_port} is no longer offered", code="torchrun-port-changed")
        store.add(_HERE, 1)
        self._await(lambda: store.add(_HERE, 0) >= order.num_nodes, f"all {order.num_nodes} nodes")
        return store

    def _await_listener(self, address: str, port: int) -> None:
        def is_there() -> bool:
            try:
                socket.create_connection((address, port), _KNOCK_S).close()
            except OSError:
                return False
            return True

        self._await(is_there, f"node 0 at {address}:{port}")

    def _await(self, is_there: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            if is_there():
                return True
            if self._node.is_attempt_over:
                raise PeerLost("the attempt was closed", code="torchrun-attempt-closed")
            return False

        if not wait_until(look, _MEET_S, what, say=_say, pause_s=_LOOK_S):
            raise PeerLost(f"{what} did not come within {_MEET_S:.0f} s", code="torchrun-nodes-missing")


def _store(address: str, port: int, listener: int | None = None) -> TCPStore:
    return TCPStore(
        address,
        port,
        is_master=listener is not None,
        timeout=timedelta(seconds=_STORE_S),
        wait_for_workers=False,
        master_listen_fd=listener,
    )


def _policy(meeting: MeetingOptions) -> Policy:
    given = {"join_s": meeting.join_s, "last_call_s": meeting.last_call_s}
    return Policy(
        start_nodes=meeting.min_nodes,
        min_nodes=meeting.min_nodes,
        max_nodes=meeting.max_nodes,
        undecided_s=0.0,  # torchrun's workers never regroup
        max_restarts=1_000_000,  # torchrun counts
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )


@contextmanager
def _coordinator(meeting: MeetingOptions) -> Iterator[tuple[str, Path]]:
    """URL and token file, in a private folder that goes with us."""
    endpoint = meeting.endpoint
    directory = Path(tempfile.mkdtemp(prefix="everstep-"))
    patience_s = Policy().join_s if meeting.join_s is None else meeting.join_s
    try:
        if endpoint.may_host(meeting.is_host):
            with host_or_join(endpoint, meeting.job, directory, meeting.token_file, patience_s, _say) as found:
                yield found
        else:
            token = join(endpoint, meeting.job, meeting.token_file, patience_s, _say)
            yield endpoint.url, save_token(directory / "token", token)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _say(line: str) -> None:
    log.warning("everstep: %s", line)  # torchrun shows no less
